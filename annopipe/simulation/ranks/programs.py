"""What many ranks do, as flat lists of numbers: the input of the simulation.

An action is a whole number from 0, and everything about it stands at that place of a list. There are three sorts:

    computation   occupies its rank for its duration
    message       occupies its link for its duration, and arrives the link's latency later
    operation     occupies a resource of its rank, such as a copy engine, for its duration

The last two never block their rank: they wait only for what their rank did before, and for their turn on the link or
the resource. In the lists a resource is a link from a rank to itself.

A computation that stands for others is a combination: it waits for the inputs of all its parts, and they end when it
ends. A receiver has no action for a message: what needs it waits for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["COMPUTATION", "GROUP", "Label", "RankPrograms"]

# In place of a link's number: what is no message.
COMPUTATION = -1
GROUP = -2


@dataclass(frozen=True, slots=True)
class Label:
    """What people call an action: see `RankSpan`."""

    text: str
    kind: str
    stage: int
    microbatch: int | None = None
    chunk: int = 0
    parts: tuple[str, ...] = ()


# Equality would compare half a million numbers and two functions.
@dataclass(frozen=True, eq=False, repr=False)
class RankPrograms:
    """Programs of all ranks, and what each action needs, takes and keeps; a time is in seconds.

    Attributes:
        ranks: the actions of each rank, in the order in which it runs them; each action is there once.
        durations: by action: seconds on its rank, for a message on its link.
        first, second: by action: what it waits for; -1 is nothing.
        link: by action: the link that a message takes; COMPUTATION, or GROUP for a computation in `parts` or `more`.
        links: sender and receiver of each link; of a resource twice the rank that has it.
        latencies: of each link, from the end of sending to arrival.
        label: what an action is called; for a message, the sending action.
        more: what an action waits for besides `first` and `second`.
        parts: the actions that a combination stands for; they are in no program themselves.
        at_start, at_end: by action: memory that its start or its end adds to its rank; empty when nothing counts.
        parameters: memory that each rank keeps all the time.
        exposed: by action: communication inside it that nothing hides; None when there is none.
        communication: by action: communication inside it, hidden or not; None when there is none.
        name: what pictures and tables call it.
    """

    ranks: Sequence[Sequence[int]]
    durations: Sequence[float]
    first: Sequence[int]
    second: Sequence[int]
    link: Sequence[int]
    links: Sequence[tuple[int, int]]
    latencies: Sequence[float]
    label: Callable[[int], Label]
    more: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    parts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    at_start: Sequence[float] = ()
    at_end: Sequence[float] = ()
    parameters: Sequence[float] = ()
    exposed: Callable[[int], float] | None = None
    communication: Callable[[int], float] | None = None
    name: str = ""

    def inputs(self, number: int) -> tuple[int, ...]:
        """What an action waits for; for a combination what its parts wait for."""
        found: list[int] = []
        for single in self.parts.get(number, (number,)):
            found += (self.first[single], self.second[single], *self.more.get(single, ()))
        return tuple(before for before in found if before >= 0)

    @property
    def own(self) -> frozenset[int]:
        """The links that are resources of a rank."""
        return frozenset(line for line, (sender, receiver) in enumerate(self.links) if sender == receiver)
