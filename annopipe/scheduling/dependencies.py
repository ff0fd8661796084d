"""What each action waits for, as flat lists of action numbers, for checks and lowering.

    F(s)        F of every predecessor of s
    B(s), I(s)  F(s), and the input gradient of every successor: its B, or its I where its backward is split
    W(s)        I(s)
    SEND_F(s)   F(s)
    SEND_B(s)   B(s) or I(s)
    RECV        nothing: it is posted; what consumes waits for the arrival

All of one microbatch, whether a message lies between or not. Order on a rank (also that of a stage which needs the
whole batch) is not in here.

One number stands for a backward whether it is split or not: I ends what B would end (`ends`), so that nobody who waits
has to know. A loop over actions is then

    done = [False] * numbering.size + [True]          # done[-1]: nothing to wait for
    if done[own[n]] and done[across[n]] and (n // m not in further or all(done[n + d] for d in further[n // m])):
        done[ends[n]] = True

`waits` puts `across` and `further` into one list for such loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from annopipe.scheduling.numbering import Numbering
from annopipe.scheduling.placement import Placement

__all__ = ["SEVERAL", "Dependencies", "dependencies", "waits"]

SEVERAL = -2


@dataclass(frozen=True, slots=True)
class Dependencies:
    """For each action number what it waits for; -1 is nothing, and extras wait for nothing (see `Numbering.parts`).

    Attributes:
        own: what the same stage did before.
        across: the first neighbouring stage, in ascending order.
        further: the other neighbours, by row (number // microbatches): distances to be added to the number.
        ends: the number whose end it is: of B for an I, of itself for everything else.
    """

    own: list[int]
    across: list[int]
    further: dict[int, tuple[int, ...]]
    ends: list[int]

    def waits_for(self, number: int, microbatches: int) -> list[int]:
        """Everything that one action waits for."""
        near = [n for n in (self.own[number], self.across[number]) if n >= 0]
        return near + [number + distance for distance in self.further.get(number // microbatches, ())]


def dependencies(placement: Placement, numbering: Numbering) -> Dependencies:
    """The tables for a placement.

    >>> from annopipe.scheduling import placement
    >>> numbering = Numbering(stages=2, microbatches=1)
    >>> chain = dependencies(placement.linear(2), numbering)
    >>> {numbering.text(n): [numbering.text(d) for d in chain.waits_for(n, 1)] for n in (1, 2, 3, 4)}
    {'1F0': ['0F0'], '0B0': ['0F0', '1B0'], '1B0': ['1F0'], '0I0': ['0F0', '1B0']}
    """
    m, size = numbering.microbatches, numbering.size
    own, across, ends = [-1] * size, [-1] * size, list(range(size))
    further: dict[int, tuple[int, ...]] = {}

    def fill(table: list[int], kind: str, stage: int, target: int) -> None:
        first = numbering.first(kind, stage)
        table[first : first + m] = range(target, target + m)

    def neighbours(kind: str, stage: int, near: tuple[int, ...], made_by: str) -> None:
        targets = [numbering.first(made_by, other) for other in near]
        if targets:
            fill(across, kind, stage, targets[0])
        if targets[1:]:
            first = numbering.first(kind, stage)
            further[first // m] = tuple(target - first for target in targets[1:])

    for stage in range(placement.stages):
        forward, backward = numbering.first("F", stage), numbering.first("B", stage)
        neighbours("F", stage, placement.predecessors[stage], "F")
        for kind in ("B", "I"):
            neighbours(kind, stage, placement.successors[stage], "B")
            fill(own, kind, stage, forward)
        fill(own, "W", stage, backward)
        fill(own, "SEND_F", stage, forward)
        fill(own, "SEND_B", stage, backward)
        fill(ends, "I", stage, backward)
    return Dependencies(own, across, further, ends)


def waits(
    tables: Dependencies, parts: Mapping[int, tuple[int, ...]], microbatches: int
) -> tuple[list[int], dict[int, tuple[int, ...]]]:
    """What each number waits for of other stages: a number, -1 for nothing, or SEVERAL; and these several ones.

    A combination waits for what its parts need, and a nano-batched action for what it needs as a whole.

    >>> from annopipe.scheduling import placement
    >>> numbering = Numbering(stages=3, microbatches=1)
    >>> towers = dependencies(placement.towers([0], [1], top=[2]), numbering)
    >>> needs, several = waits(towers, {}, 1)
    >>> needs[:3], several
    ([-1, -1, -2], {2: (0, 1)})
    """
    across, several = tables.across, dict[int, tuple[int, ...]]()
    for row, distances in tables.further.items():
        for number in range(row * microbatches, (row + 1) * microbatches):
            several[number] = (across[number], *(number + distance for distance in distances))
    for number, own_parts in parts.items():
        needed = tuple(n for part in own_parts for n in several.get(part, (across[part],)) if n >= 0)
        if needed:
            several[number] = needed
    if not several:
        return across, several
    needs = across.copy()
    for number in several:
        needs[number] = SEVERAL
    return needs, several
