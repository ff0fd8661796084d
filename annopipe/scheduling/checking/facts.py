"""What the rules of the checker look at, worked out once: where every action is, as flat lists of numbers."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from annopipe.scheduling.actions import PARAMETERS, Action
from annopipe.scheduling.programs import Programs

__all__ = ["Facts"]


# No slots: what is derived is kept.
@dataclass(frozen=True)
class Facts:
    """Positions of the actions of programs.

    The programs are looked at one behind the other: rank 0's, then rank 1's. A position is an index into this row, so
    that it says which rank it is on, and of two on one rank which comes first. An action that stands for others (see
    `Numbering.parts`) is followed by them.

    Attributes:
        programs: what is checked.
        parts: what each extra stands for.
        flat: the action numbers of each rank.
        starts: the first position of each rank, and the end of the last.
        where: the position of each number; -1 when it is not done.
    """

    programs: Programs
    parts: dict[int, tuple[int, ...]]
    flat: tuple[Sequence[int], ...]
    starts: tuple[int, ...]
    where: list[int]

    @classmethod
    def of(cls, programs: Programs) -> "Facts":
        """Look at programs."""
        parts = programs.numbering.parts
        flat = programs.ranks if not any(parts.values()) else tuple(_flat(program, parts) for program in programs.ranks)
        where, starts = [-1] * programs.numbering.size, [0]
        for numbers in flat:
            for position, number in enumerate(numbers, starts[-1]):
                where[number] = position
            starts.append(starts[-1] + len(numbers))
        return cls(programs, parts, flat, tuple(starts), where)

    @cached_property
    def has_backward(self) -> bool:
        """Whether any B, I or W is done."""
        numbering = self.programs.numbering
        return max(self.where[numbering.first("B") : numbering.first("SEND_F")]) >= 0

    @cached_property
    def has_messages(self) -> bool:
        """Whether any SEND or RECV is done."""
        numbering = self.programs.numbering
        return max(self.where[numbering.first("SEND_F") : numbering.base]) >= 0

    @cached_property
    def begins(self) -> list[int]:
        """As `where`, but the parts of a combination are where the combination is."""
        if self.flat is self.programs.ranks:
            return self.where
        begins = self.where.copy()
        for number, parts in self.parts.items():
            for part in parts:
                begins[part] = self.where[number]
        return begins

    @cached_property
    def others(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """(step, number) of every operation of a user and parameter action on each rank."""
        base, wanted = self.programs.numbering.base, {number for number, parts in self.parts.items() if not parts}
        if not wanted:
            return ((),) * len(self.flat)
        programs = self.programs.ranks
        return tuple(tuple([(i, n) for i, n in enumerate(row) if n >= base and n in wanted]) for row in programs)

    @cached_property
    def on_parameters(self) -> tuple[tuple[tuple[int, Action], ...], ...]:
        """(step, action) of every UNSHARD, RESHARD and REDUCE_GRAD on each rank."""
        numbering = self.programs.numbering
        wanted = {n: a for n, a in enumerate(numbering.extras, numbering.base) if a.kind in PARAMETERS}
        return tuple(tuple([(step, wanted[n]) for step, n in others if n in wanted]) for others in self.others)

    def seen(self, stage: int) -> range:
        """The microbatches that a stage sees."""
        return self.programs.placement.microbatches_of(stage, self.programs.microbatches)

    def row(self, kind: str, stage: int, positions: list[int] | None = None) -> list[int]:
        """Positions of a kind of action of a stage, for the microbatches that the stage sees."""
        first, seen = self.programs.numbering.first(kind, stage), self.seen(stage)
        return (positions or self.where)[first + seen.start : first + seen.stop]

    def backward(self, stage: int, positions: list[int] | None = None) -> list[int]:
        """Positions of a stage's B, or I where its backward is split."""
        full, split = self.row("B", stage, positions), self.row("I", stage, positions)
        if max(split, default=-1) < 0:
            return full
        if max(full, default=-1) < 0:
            return split
        return [b if b >= 0 else i for b, i in zip(full, split, strict=True)]

    def place(self, number: int) -> tuple[int, int]:
        """Rank and step of an action that is done; of the combination of which it is a part."""
        return self.place_at(self.where[number])

    def place_at(self, position: int) -> tuple[int, int]:
        """Rank and step of a position."""
        rank = bisect_right(self.starts, position) - 1
        return rank, self.step(rank, position - self.starts[rank])

    def step(self, rank: int, index: int) -> int:
        """The step of a rank that an index into its flat numbers belongs to."""
        program = self.programs.ranks[rank]
        if self.flat[rank] is program:
            return index
        passed = -1
        for step, number in enumerate(program):
            passed += 1 + len(self.parts.get(number, ()))
            if passed >= index:
                return step
        return len(program)

    def number(self, kind: str, stage: int, index: int) -> int:
        """The number of an action; `index` counts the microbatches that the stage sees."""
        return self.programs.numbering.first(kind, stage) + self.seen(stage)[index]


def _flat(program: Sequence[int], parts: dict[int, tuple[int, ...]]) -> Sequence[int]:
    base = min(parts)
    if max(program, default=-1) < base:
        return program
    found: list[int] = []
    for number in program:
        found.append(number)
        if number >= base:
            found += parts[number]
    return found
