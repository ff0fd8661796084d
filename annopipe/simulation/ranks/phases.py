"""The phases of a step: how long each takes on each rank, and how much communication it hides and exposes.

The steady state of a rank goes from its first combination of a forward with a backward to its last one; of a rank that
has none, from its first backward to its last forward. What comes before is the warm-up, what comes behind the
cool-down. A rank that has no backward at all is in its steady state.

A phase begins where the one before ends, and ends with its last action; the time for which a rank waits belongs to the
action that waits. The warm-up begins with the step, the cool-down ends with it, so that the phases of each rank add up
to the makespan; a phase without an action takes no time, but for a rank's last one.

    rank 0   0F0 0F1 | (0F2;3B0) (0F3;3B1) | 3B2 3B3
             warm-up |    steady state     | cool-down
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from annopipe.errors import ScheduleError
from annopipe.simulation.ranks.timeline import ScheduleTimeline
from annopipe.simulation.tables import table
from annopipe.simulation.wording import one_line, seconds_text

__all__ = ["PHASES", "Phase", "phase_numbers", "phase_table", "phases", "steady_state"]

PHASES = ("warm-up", "steady state", "cool-down")
_ALONE = (PHASES[0], PHASES[2])  # in which forwards and backwards have no partner
_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase on one rank; times in seconds.

    Attributes:
        rank: which rank.
        name: "warm-up", "steady state" or "cool-down".
        start, end: from the start of the step.
        actions: how many actions it has.
        communication: inside its actions, and of messages that they need, from when they are sent to their arrival.
        exposed: the part of it that no computation hides; over all phases it is `timeline.exposed`.

    >>> Phase(0, "warm-up", 0.0, 2.0, 1, communication=1.0, exposed=0.25).hidden
    0.75
    """

    rank: int
    name: str
    start: float
    end: float
    actions: int
    communication: float
    exposed: float

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.start

    @property
    def hidden(self) -> float:
        """The communication that computation hides."""
        return max(0.0, self.communication - self.exposed)


def steady_state(kinds: Sequence[Collection[str]]) -> range:
    """The places of a rank's steady state; of each of its actions the kinds are given, several for a combination.

    >>> steady_state(["F", "F", "FB", "FB", "B", "B"]), steady_state(["F", "B", "F", "B"]), steady_state(["F", "B"])
    (range(2, 4), range(1, 3), range(1, 1))
    """
    backward = [place for place, own in enumerate(kinds) if "B" in own or "I" in own]
    forward = [place for place, own in enumerate(kinds) if "F" in own]
    paired = sorted(set(forward) & set(backward))
    if paired:
        return range(paired[0], paired[-1] + 1)
    if not backward:
        return range(len(kinds))
    return range(backward[0], max(backward[0], max(forward, default=-1) + 1))


def phases(timeline: ScheduleTimeline) -> tuple[Phase, ...]:
    """The three phases of every rank, rank by rank.

    >>> import annopipe as ap
    >>> timeline = ap.simulate(ap.schedule("1f1b", 2, 4), ap.costs.table(exposed={"F": 0.5}))
    >>> [(phase.name, phase.seconds, phase.exposed) for phase in phases(timeline) if phase.rank == 0]
    [('warm-up', 2.0, 1.0), ('steady state', 8.0, 1.0), ('cool-down', 5.0, 0.0)]
    """
    found: list[Phase] = []
    for rank, (spans, comm) in enumerate(zip(timeline.spans, timeline.comm_by_action, strict=True)):
        steady = steady_state([span.kinds for span in spans])
        start = 0.0
        for name, own in zip(PHASES, (range(steady.start), steady, range(steady.stop, len(spans))), strict=True):
            end = timeline.makespan if name == PHASES[-1] else spans[own[-1]].end if own else start
            rows = [comm[place] for place in own]
            everything = math.fsum(row.inside + row.awaited for row in rows)
            exposed = math.fsum(row.inside_exposed + row.awaited_exposed for row in rows)
            found.append(Phase(rank, name, start, end, len(own), everything, exposed))
            start = end
    return tuple(found)


def phase_numbers(timelines: Mapping[str, ScheduleTimeline]) -> dict[str, object]:
    """Plain data: the phases of each timeline, rank by rank; and the shares that `phase_table` says.

    Raises ScheduleError when there is no timeline, or they are of different numbers of ranks.
    """
    found = _phases_of(timelines)
    return {
        "phases": {
            name: [{**asdict(phase), "seconds": phase.seconds, "hidden": phase.hidden} for phase in rows]
            for name, rows in found.items()
        },
        "makespans": {name: timeline.makespan for name, timeline in timelines.items()},
        "hidden_shares": _hidden_shares(found),
    }


def phase_table(timelines: Mapping[str, ScheduleTimeline]) -> str:
    """Time, hidden and exposed communication of every phase of every rank, timelines side by side; then their sums.

    With several timelines, the last lines say how much of the communication that the first exposes in its warm-up and
    cool-down each other one does not expose there: what nano-batches hide, say.

    Raises ScheduleError when there is no timeline, or they are of different numbers of ranks.

    >>> import annopipe as ap
    >>> schedule = ap.schedule("1f1b", 2, 2)
    >>> costs = {name: ap.costs.table(exposed={"F": share}) for name, share in (("plain", 0.5), ("in lanes", 0.2))}
    >>> print(phase_table({name: ap.simulate(schedule, given) for name, given in costs.items()}))
                        plain                   in lanes
    rank  phase          time  hidden  exposed      time  hidden  exposed
    0     warm-up         2 s     0 s      1 s       2 s     0 s   400 ms
          steady state    0 s     0 s      0 s       0 s     0 s      0 s
          cool-down       7 s     0 s      0 s       7 s     0 s      0 s
    1     warm-up         2 s     0 s   500 ms       2 s     0 s   200 ms
          steady state    3 s     0 s   500 ms       3 s     0 s   200 ms
          cool-down       4 s     0 s      0 s       4 s     0 s      0 s
    all   warm-up         4 s     0 s    1.5 s       4 s     0 s   600 ms
          steady state    3 s     0 s   500 ms       3 s     0 s   200 ms
          cool-down      11 s     0 s      0 s      11 s     0 s      0 s
    in lanes: 60% of the communication exposed in warm-up and cool-down is hidden
    """
    found = _phases_of(timelines)
    rows = [["", "", *(cell for name in found for cell in (one_line(name), "", ""))]] if len(found) > 1 else []
    rows.append(["rank", "phase", *(["time", "hidden", "exposed"] * len(found))])
    ranks = next(iter(timelines.values())).ranks
    for rank in range(ranks):
        rows += _lines(
            str(rank), {name: [phase for phase in every if phase.rank == rank] for name, every in found.items()}
        )
    if ranks > 1:
        rows += _lines("all", found)
    lines = table(rows, _WIDTH)
    for name, share in _hidden_shares(found).items():
        if share is not None:
            lines.append(
                f"{one_line(name)}: {share:.0%} of the communication exposed in warm-up and cool-down is hidden"
            )
    return "\n".join(lines)


def _lines(rank: str, found: Mapping[str, Sequence[Phase]]) -> list[list[str]]:
    lines = []
    for name in PHASES:
        cells: list[str] = []
        for every in found.values():
            own = [phase for phase in every if phase.name == name]
            numbers = (math.fsum(getattr(phase, what) for phase in own) for what in ("seconds", "hidden", "exposed"))
            cells += map(seconds_text, numbers)
        lines.append([rank if name == PHASES[0] else "", name, *cells])
    return lines


def _phases_of(timelines: Mapping[str, ScheduleTimeline]) -> dict[str, tuple[Phase, ...]]:
    if not timelines:
        raise ScheduleError("no timelines: give a mapping from names to timelines, one per schedule")
    ranks = {name: timeline.ranks for name, timeline in timelines.items()}
    if len(set(ranks.values())) > 1:
        counts = ", ".join(f"{name} has {count}" for name, count in ranks.items())
        raise ScheduleError(f"phases stand side by side for one number of ranks, and {counts}")
    return {name: phases(timeline) for name, timeline in timelines.items()}


def _hidden_shares(found: Mapping[str, Sequence[Phase]]) -> dict[str, float | None]:
    """Of what the first exposes in warm-up and cool-down the share that each other one does not expose there."""
    exposed = {
        name: math.fsum(phase.exposed for phase in every if phase.name in _ALONE) for name, every in found.items()
    }
    (_, before), *others = exposed.items()
    return {name: 1.0 - after / before if before else None for name, after in others}
