"""The exact order of every rank, written as its phases: what repeats, and how often.

    p - r : F        as many times as the formula says: the next forward of this rank
    r : F B          then r times a forward and a backward, in turns
    * : B            then as often as there is anything left to do

A phase is a count, a colon and tokens; several phases on one line are separated by semicolons. A token is F, B, I or W:
with a number behind it for one chunk of the rank (F1: the second of its stages, as the model is deep), without one for
the next of any chunk: forwards and backwards in the order that the specification gives, W in the order
in which the I ran. ``F0&B1`` is a combination.

What a token asks for and is not there (no microbatch is left, no I has left a W) is left out: so the phases of a
schedule that wants many microbatches say what happens with few. A rank whose phases end before all its work is done is
refused.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.generation.formulas import Formula, compiled

__all__ = ["Phase", "RankWork", "lay_out", "parse_phases"]

_TOKEN = re.compile(r"([FBIW])([0-9]{0,4})")
_COUNTED = ("p", "r", "m", "v")


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: `count` None repeats as long as there is something to do; every step is a tuple of (kind, chunk).

    A chunk of -1 is any.
    """

    text: str
    count: Formula | None
    steps: tuple[tuple[tuple[str, int], ...], ...]


@dataclass(frozen=True, slots=True)
class RankWork:
    """What one rank has to do, in the order in which each chunk, and all chunks together, take it.

    Attributes:
        chunks: the stage of each chunk.
        forwards, backwards: (stage, microbatch) of the whole rank, in order.
    """

    chunks: tuple[int, ...]
    forwards: Sequence[tuple[int, int]]
    backwards: Sequence[tuple[int, int]]


def parse_phases(lines: Sequence[str]) -> tuple[Phase, ...]:
    """Read the phases of a specification.

    Raises ScheduleError for a line that is not phases, with the line and the part that is wrong.

    >>> [phase.steps for phase in parse_phases(["p - r: F; *: F0&B1 W"])]
    [((('F', -1),),), ((('F', 0), ('B', 1)), (('W', -1),))]
    """
    return tuple(_phase(part, line) for line in lines for part in line.split(";") if part.strip())


def lay_out(phases: Sequence[Phase], work: RankWork, values: Mapping[str, int]) -> list[tuple[Action, Phase]]:
    """The actions of one rank, each with the phase that it belongs to.

    Raises ScheduleError when the phases end and work is left, or a token names a chunk that the rank does not hold.
    """
    queues = _Queues(work, values["r"])
    actions: list[tuple[Action, Phase]] = []
    for phase in phases:
        for _ in _turns(phase, values, queues):
            for step in phase.steps:
                parts = [found for kind, chunk in step if (found := queues.take(kind, chunk))]
                if parts:
                    actions.append((overlap(*parts) if len(parts) > 1 else parts[0], phase))
    left = queues.left()
    if left:
        raise ScheduleError(
            f"rank {values['r']}: the phases end and {left} is not done; let the counts add up, or end with '*: ...'"
        )
    return actions


def _turns(phase: Phase, values: Mapping[str, int], queues: "_Queues") -> Iterator[int]:
    """The turns of a phase, up to the first that finds nothing to do: so would all behind it."""
    turns: Iterable[int] = count() if phase.count is None else range(phase.count(values))
    before = -1
    for turn in turns:
        if before == queues.taken:
            return
        before = queues.taken
        yield turn


class _Queues:
    """What is left to do on one rank."""

    def __init__(self, work: RankWork, rank: int) -> None:
        self.taken = 0
        self._rank = rank
        self._chunks = work.chunks
        self._any = {"F": deque(work.forwards), "B": deque(work.backwards)}
        self._weights: deque[tuple[int, int]] = deque()
        self._done: dict[str, set[tuple[int, int]]] = {"F": set(), "B": set(), "W": set()}
        self._of_chunk = {
            (kind, stage): deque(pair for pair in pairs if pair[0] == stage)
            for kind, pairs in (("F", work.forwards), ("B", work.backwards))
            for stage in work.chunks
        }
        self._weights_of: dict[int, deque[tuple[int, int]]] = {stage: deque() for stage in work.chunks}

    def take(self, kind: str, chunk: int) -> Action | None:
        """The next action of this kind; None when none is left."""
        queue_kind = "B" if kind == "I" else kind
        queue = self._queue(queue_kind, chunk)
        done = self._done[queue_kind]
        while queue and queue[0] in done:
            queue.popleft()
        if not queue:
            return None
        pair = queue.popleft()
        done.add(pair)
        if kind == "I":
            self._weights.append(pair)
            self._weights_of[pair[0]].append(pair)
        self.taken += 1
        return Action(kind, *pair)

    def left(self) -> str:
        """Something that is not done, as text; "" when all is."""
        for kind, queue in (*self._any.items(), ("W", self._weights)):
            for pair in queue:
                if pair not in self._done[kind]:
                    return str(Action(kind, *pair))
        return ""

    def _queue(self, kind: str, chunk: int) -> deque[tuple[int, int]]:
        if chunk < 0:
            return self._weights if kind == "W" else self._any[kind]
        if chunk >= len(self._chunks):
            raise ScheduleError(
                f"rank {self._rank}: {kind}{chunk} names a chunk, and there are {len(self._chunks)}, counted from 0"
            )
        stage = self._chunks[chunk]
        return self._weights_of[stage] if kind == "W" else self._of_chunk[kind, stage]


def _phase(text: str, line: str) -> Phase:
    times, colon, tokens = text.partition(":")
    steps = tuple(tuple(_token(part, line) for part in step.split("&")) for step in tokens.split())
    if not colon or not steps:
        raise ScheduleError(
            f"{text.strip()!r} in {line!r} is not a phase; write a count, a colon and tokens: 'p - r: F B'"
        )
    try:
        return Phase(text.strip(), None if times.strip() == "*" else compiled(times.strip(), _COUNTED), steps)
    except ScheduleError as error:
        raise ScheduleError(f"the count of {text.strip()!r} in {line!r}: {error}") from None


def _token(text: str, line: str) -> tuple[str, int]:
    found = _TOKEN.fullmatch(text)
    if not found:
        raise ScheduleError(
            f"{text!r} in {line!r} is not a token; write F, B, I or W, F1 for a chunk, F0&B1 for a pair"
        )
    kind, chunk = found.groups()
    return kind, int(chunk) if chunk else -1
