"""A schedule's timeline: when every action of every rank ran, and what it comes to."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike

from annopipe.simulation.ranks import critical, exposure, html, memory, perfetto, png, text
from annopipe.simulation.ranks.engine import run
from annopipe.simulation.ranks.programs import RankPrograms
from annopipe.simulation.ranks.spans import Message, RankSpan
from annopipe.simulation.timeline import Timeline
from annopipe.simulation.wording import seconds_text

__all__ = ["ScheduleTimeline"]


# No slots: what is costly is computed on first use and kept. Equality would compare half a million numbers.
@dataclass(frozen=True, eq=False, repr=False)
class ScheduleTimeline(Timeline):
    """What many ranks did, from the start of the step; `annopipe.simulate(schedule, costs)` makes it.

    Every time is in the unit of the costs, seconds if they are; memory likewise.

    Attributes:
        programs: what was simulated.
        starts, ends: of every action by its number; the end of a message is its arrival.

    >>> import annopipe as ap
    >>> schedule = ap.Schedule.of(ap.placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> timeline = ap.simulate(schedule, ap.costs.table(F=1.0, B=2.0, latency=0.25))
    >>> timeline.makespan, timeline.busy, timeline.exposed_comm
    (6.5, (3.0, 3.0), 0.5)
    >>> [span.text for span in timeline.spans[1]]
    ['1F0', '1B0']
    """

    programs: RankPrograms
    starts: Sequence[float]
    ends: Sequence[float]

    @classmethod
    def of(cls, programs: RankPrograms) -> "ScheduleTimeline":
        """Simulate the programs.

        Raises ScheduleError when they cannot finish, and says who waits for what.
        """
        return cls(programs, *run(programs))

    def __repr__(self) -> str:
        name = f"{self.name}, " if self.name else ""
        return f"ScheduleTimeline({name}{self.ranks} ranks, makespan {seconds_text(self.makespan)})"

    def __str__(self) -> str:
        """A drawing that fits a terminal, with the numbers."""
        return text.render(self)

    @property
    def name(self) -> str:
        """The schedule's name; "" when it has none."""
        return self.programs.name

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.programs.ranks)

    @cached_property
    def computations(self) -> tuple[tuple[int, ...], ...]:
        """For each rank the numbers of what occupies it, in order."""
        link = self.programs.link
        return tuple(tuple([n for n in program if link[n] < 0]) for program in self.programs.ranks)

    @cached_property
    def operations(self) -> tuple[tuple[int, ...], ...]:
        """For each rank the numbers of what runs on resources of its own."""
        link, own = self.programs.link, self.programs.own
        return tuple(tuple([n for n in program if link[n] in own]) if own else () for program in self.programs.ranks)

    @cached_property
    def sends(self) -> tuple[int, ...]:
        """The numbers of all messages, sender by sender in the order of sending."""
        link, own = self.programs.link, self.programs.own
        return tuple([n for program in self.programs.ranks for n in program if link[n] >= 0 and link[n] not in own])

    @cached_property
    def spans(self) -> tuple[tuple[RankSpan, ...], ...]:
        """The actions of each rank, in order."""
        return tuple(
            tuple([self.span(rank, number) for number in numbers]) for rank, numbers in enumerate(self.computations)
        )

    @cached_property
    def beside(self) -> tuple[tuple[RankSpan, ...], ...]:
        """What runs beside the actions of each rank, on resources of its own."""
        return tuple(
            tuple([self.span(rank, number) for number in numbers]) for rank, numbers in enumerate(self.operations)
        )

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """All messages, sender by sender in the order of sending."""
        return tuple([self.message(number) for number in self.sends])

    def span(self, rank: int, number: int) -> RankSpan:
        """One action of a rank."""
        label = self.programs.label(number)
        start, end = self.starts[number], self.ends[number]
        named = (label.stage, label.microbatch, label.chunk, label.parts)
        return RankSpan(rank, label.text, label.kind, start, end, *named)

    def message(self, number: int) -> Message:
        """One message."""
        sender, receiver = self.programs.links[self.programs.link[number]]
        start = self.starts[number]
        sent = start + self.programs.durations[number]
        return Message(self.programs.label(number).text, sender, receiver, start, sent, self.ends[number])

    @cached_property
    def _bounds(self) -> tuple[tuple[float, float], ...]:
        """First start and last end of each rank that does something, on resources of its own too."""
        found = []
        for own, beside in zip(self.computations, self.operations, strict=True):
            first = [self.starts[n] for n in (*own[:1], *beside)]
            if first:
                found.append((min(first), max([self.ends[n] for n in (*own[-1:], *beside)])))
        return tuple(found)

    @cached_property
    def makespan(self) -> float:
        """When the last rank is finished."""
        return max((end for _, end in self._bounds), default=0.0)

    @cached_property
    def window(self) -> float:
        """The largest last end minus first start of a rank, of actions that take time."""
        durations = self.programs.durations
        largest = 0.0
        for own, beside in zip(self.computations, self.operations, strict=True):
            first = next((n for n in own if durations[n]), None)
            last = next((n for n in reversed(own) if durations[n]), None)
            timed = [n for n in (first, last, *beside) if n is not None and durations[n]]
            if timed:
                largest = max(largest, max(self.ends[n] for n in timed) - min(self.starts[n] for n in timed))
        return largest

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Seconds that each rank spends in its actions."""
        durations = self.programs.durations
        return tuple(math.fsum([durations[number] for number in numbers]) for numbers in self.computations)

    @property
    def idle(self) -> float:
        """The largest idle time of a rank, over the makespan."""
        return max(0.0, self.makespan - min(self.busy, default=0.0))

    @cached_property
    def bubbles(self) -> tuple[float, ...]:
        """Idle share of each rank over the makespan, 0 to 1."""
        makespan = self.makespan
        return tuple(max(0.0, 1.0 - busy / makespan) if makespan else 0.0 for busy in self.busy)

    @property
    def bubble(self) -> float:
        """Idle share of the time of all ranks over the makespan, 0 to 1."""
        return math.fsum(self.bubbles) / self.ranks

    @property
    def message_count(self) -> int:
        """How many messages there are."""
        return len(self.sends)

    @cached_property
    def comm_time(self) -> float:
        """Seconds for which messages occupy links, all links together."""
        return math.fsum([self.programs.durations[number] for number in self.sends])

    @cached_property
    def exposed(self) -> tuple[float, ...]:
        """Seconds of communication that each rank does not hide: see `exposed_comm`."""
        return exposure.exposed(self.programs, self.starts, self.ends)

    @cached_property
    def comm_by_action(self) -> tuple[tuple[exposure.ActionComm, ...], ...]:
        """For each rank the communication of each of its `spans`."""
        return exposure.by_action(self.programs, self.starts, self.ends)

    @property
    def exposed_comm(self) -> float:
        """Seconds, over all ranks, in which a rank idles while a message that it waits for is under way.

        Under way is from being sent to arrival, in line behind other messages of its link too. Communication inside
        actions that their costs call exposed is added.
        """
        return math.fsum(self.exposed)

    @cached_property
    def activations(self) -> tuple[float, ...]:
        """The most that activations occupy on each rank."""
        curves = zip(self.computations, self.operations, strict=True)
        return tuple(memory.peak(self.programs, *numbers, self.starts, self.ends) for numbers in curves)

    @property
    def peaks(self) -> tuple[float, ...]:
        """The most memory that each rank occupies: parameters and activations."""
        held = self.programs.parameters or (0.0,) * self.ranks
        return tuple(parameters + most for parameters, most in zip(held, self.activations, strict=True))

    @property
    def peak_memory(self) -> float:
        """The most memory that a rank occupies: parameters and activations."""
        return max(self.peaks, default=0.0)

    @cached_property
    def memory(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """The memory of each rank over time as steps, (from when, how much), parameters included."""
        curves = enumerate(zip(self.computations, self.operations, strict=True))
        return tuple(memory.steps(self.programs, rank, *numbers, self.starts, self.ends) for rank, numbers in curves)

    @cached_property
    def critical_path(self) -> tuple[RankSpan | Message, ...]:
        """What the makespan is made of, from its start to its end: each entry starts when the one before ends.

        A message ends when it arrives; where the next entry is a message that waited for its link, when it is sent.
        Messages that take no time are left out.
        """
        path = critical.path(self.programs, self.starts, self.ends)
        return tuple(self.message(n) if rank < 0 else self.span(rank, n) for rank, n in path)

    def to_dict(self) -> dict[str, object]:
        """Plain data: the numbers, those of each rank, the critical path, all spans and the messages."""
        names = ("name", "ranks", "makespan", "window", "bubble", "idle", "exposed_comm", "comm_time", "message_count")
        by_rank = ("busy", "bubbles", "exposed", "peaks", "activations", "memory")
        return {
            **{name: getattr(self, name) for name in (*names, "peak_memory", *by_rank)},
            "critical_path": [entry.text for entry in self.critical_path],
            "spans": [[asdict(span) for span in spans] for spans in self.spans],
            "beside": [[asdict(span) for span in spans] for spans in self.beside],
            "messages": [asdict(message) for message in self.messages],
        }

    @property
    def _title(self) -> str:
        return f"annopipe schedule {self.name}".strip()

    def to_html(self, path: str | PathLike[str], title: str | None = None) -> None:
        """Write one self-contained page for a browser."""
        html.write(path, {self.name: self}, self._title if title is None else title)

    def to_png(self, path: str | PathLike[str], title: str | None = None) -> None:
        """Write a picture; needs matplotlib.

        Raises AnnopipeError when matplotlib is not installed.
        """
        png.write(path, {self.name: self}, self._title if title is None else title)

    def to_perfetto(self, path: str | PathLike[str]) -> None:
        """Write a Chrome trace (JSON) for https://ui.perfetto.dev or chrome://tracing."""
        perfetto.write(path, self)
