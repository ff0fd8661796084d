"""The critical path: from the end of the last action back to the start, always to what held the action up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from annopipe.simulation.ranks.programs import RankPrograms

__all__ = ["path"]

# Rank and position in its program.
Place = tuple[int, int]


def path(programs: RankPrograms, starts: Sequence[float], ends: Sequence[float]) -> list[tuple[int, int]]:
    """The actions on the way, first to last, as (rank, number); the rank of a message is -1.

    Where several things held an action up until the same moment, the path stays on the rank.
    """
    search, own = _Search(programs, starts, ends), programs.own
    found: list[tuple[int, int]] = []
    place = search.last()
    while place is not None:
        rank, number = place[0], search.number(place)
        if programs.link[number] < 0 or programs.link[number] in own:
            found.append((rank, number))
        elif ends[number] > starts[number]:
            found.append((-1, number))
        place = next(search.causes(place), None) if starts[number] > 0.0 else None
    found.reverse()
    return found


@dataclass(frozen=True)
class _Search:
    programs: RankPrograms
    starts: Sequence[float]
    ends: Sequence[float]

    @cached_property
    def places(self) -> dict[int, Place]:
        """Where each action is; a part is where its combination is."""
        ranks, parts = enumerate(self.programs.ranks), self.programs.parts
        found = {number: (rank, step) for rank, program in ranks for step, number in enumerate(program)}
        return found | {part: found[number] for number in parts if number in found for part in parts[number]}

    def number(self, place: Place) -> int:
        rank, step = place
        return self.programs.ranks[rank][step]

    def last(self) -> Place | None:
        """What ends last, of all but messages."""
        link, own = self.programs.link, self.programs.own
        candidates = (n for n in self.places if link[n] < 0 or link[n] in own)
        # Of equal ends the one that a rank runs last: those before it take no time.
        number = max(candidates, key=lambda n: (self.ends[n], self.places[n][1]), default=None)
        return None if number is None else self.places[number]

    def causes(self, place: Place) -> Iterator[Place]:
        """What ended just when this action started."""
        number = self.number(place)
        start, line = self.starts[number], self.programs.link[number]
        before = self.earlier(place, line=None)
        if before is not None and self.ends[self.number(before)] == start:
            yield before
        if line >= 0:
            before = self.earlier(place, line)
            if before is not None and self.sent(self.number(before)) == start:
                yield before
        else:
            yield from (
                self.places[n] for n in self.programs.inputs(number) if n in self.places and self.ends[n] == start
            )

    def earlier(self, place: Place, line: int | None) -> Place | None:
        """The last message on a link before a place in its program; with None the last computation."""
        rank, step = place
        program, link = self.programs.ranks[rank], self.programs.link
        for at in range(step - 1, -1, -1):
            found = link[program[at]]
            if found == line or (line is None and found < 0):
                return rank, at
        return None

    def sent(self, number: int) -> float:
        return self.starts[number] + self.programs.durations[number]
