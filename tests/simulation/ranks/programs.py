"""Small programs for the simulation of ranks, written as texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from annopipe.simulation.ranks.programs import COMPUTATION, GROUP, Label, RankPrograms
from annopipe.simulation.ranks.timeline import ScheduleTimeline


@dataclass
class Written:
    """Programs by text: `ranks` lists names, `needs` what each waits for, `seconds` its time (1.0 where absent)."""

    ranks: Sequence[str]
    needs: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # of the messages; a resource is a link from a rank to itself
    latency: float = 0.0
    keeps: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    parameters: Sequence[float] = ()
    exposed: Mapping[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        found = [name for rank in self.ranks for name in rank.split()]
        found += [name for inputs in (*self.parts.values(), *self.needs.values()) for name in inputs.split()]
        return list(dict.fromkeys(found))

    def programs(self) -> RankPrograms:
        names = self.names
        number = {name: position for position, name in enumerate(names)}
        needs = [[number[name] for name in self.needs.get(name, "").split()] for name in names]
        ends = list(dict.fromkeys(self.links.values()))
        more = {n: tuple(inputs[2:]) for n, inputs in enumerate(needs) if inputs[2:]}
        parts = {number[name]: tuple(number[part] for part in text.split()) for name, text in self.parts.items()}
        sort = [GROUP if n in parts or n in more else COMPUTATION for n in range(len(names))]
        return RankPrograms(
            ranks=[[number[name] for name in rank.split()] for rank in self.ranks],
            durations=[self.seconds.get(name, 1.0) for name in names],
            first=[(*inputs, -1)[0] for inputs in needs],
            second=[(*inputs, -1, -1)[1] for inputs in needs],
            link=[ends.index(self.links[name]) if name in self.links else sort[n] for n, name in enumerate(names)],
            links=ends,
            latencies=[0.0 if sender == receiver else self.latency for sender, receiver in ends],
            label=lambda n: Label(names[n], "F", 0, None, 0, tuple(self.parts.get(names[n], "").split())),
            more=more,
            parts=parts,
            at_start=[self.keeps.get(name, (0.0, 0.0))[0] for name in names] if self.keeps else (),
            at_end=[self.keeps.get(name, (0.0, 0.0))[1] for name in names] if self.keeps else (),
            parameters=self.parameters,
            exposed=(lambda n: self.exposed.get(names[n], 0.0)) if self.exposed else None,
            name="written",
        )

    def timeline(self) -> ScheduleTimeline:
        return ScheduleTimeline.of(self.programs())

    def times(self) -> dict[str, tuple[float, float]]:
        timeline = self.timeline()
        return {name: (timeline.starts[n], timeline.ends[n]) for n, name in enumerate(self.names)}


EIGHTHS = st.integers(0, 16).map(lambda n: n / 8)  # sums of these are exact


@st.composite
def written(draw: st.DrawFn) -> Written:
    """Programs that can finish: actions are made in an order in which they can run, each on a rank."""
    count = draw(st.integers(1, 4))
    ranks: list[list[str]] = [[] for _ in range(count)]
    needs: dict[str, str] = {}
    parts: dict[str, str] = {}
    links: dict[str, tuple[int, int]] = {}
    made: list[str] = []  # what others can wait for: computations, parts of combinations, messages
    names: list[str] = []
    for number in range(draw(st.integers(0, 24))):
        rank, sort = draw(st.integers(0, count - 1)), draw(st.sampled_from(["compute", "send", "send", "combine"]))
        name = f"{sort}{number}"
        local = [n for n in ranks[rank] if n not in links]
        if sort == "send":
            if not local:
                continue
            needs[name] = draw(st.sampled_from(local))
            links[name] = rank, draw(st.integers(0, count - 1))
            made.append(name)
        else:
            singles = [f"{name}.{index}" for index in range(draw(st.integers(1, 3)))] if sort == "combine" else [name]
            for single in singles:
                needs[single] = " ".join(draw(st.lists(st.sampled_from(made), max_size=4)) if made else ())
            if sort == "combine":
                parts[name] = " ".join(singles)
            made += singles
        ranks[rank].append(name)
        names.append(name)
    seconds = {name: draw(EIGHTHS) for name in names}
    return Written([" ".join(rank) for rank in ranks], needs, seconds, parts, links, draw(EIGHTHS))
