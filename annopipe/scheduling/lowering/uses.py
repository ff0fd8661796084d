"""What the passes on parameters share: which stages an action computes, and numbers for parameter actions."""

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import COMPUTE, Action
from annopipe.scheduling.numbering import BLOCKS, Numbering
from annopipe.scheduling.programs import Programs

__all__ = ["Uses", "refuse_kinds", "with_kind"]


class Uses:
    """The stages that an action computes, with the kinds of action that count.

    >>> from annopipe.scheduling import placement
    >>> programs = Programs.of(placement.looped(1, 2), 1, [["0F0", "(1F0;0B0)OVERLAP_F_B", "1UNSHARD"]])
    >>> [Uses(programs)(number) for number in programs.ranks[0]]
    [(0,), (1, 0), ()]
    """

    def __init__(self, programs: Programs, kinds: tuple[str, ...] = COMPUTE) -> None:
        numbering = programs.numbering
        self._microbatches, self._base = programs.microbatches, numbering.base
        self._rows = [(stage,) if kind in kinds else () for kind in BLOCKS for stage in range(numbering.stages)]
        self._extras = {
            number: tuple(stage for part in parts for stage in self._rows[part // self._microbatches])
            for number, parts in numbering.parts.items()
        }

    def __call__(self, number: int) -> tuple[int, ...]:
        """The stages of one action, in the order of its parts."""
        return self._extras[number] if number >= self._base else self._rows[number // self._microbatches]


def with_kind(programs: Programs, kind: str) -> tuple[Numbering, list[int]]:
    """The numbering with a parameter action, which no program has yet, for every stage; and these numbers."""
    old = programs.numbering
    added = tuple(Action(kind, stage) for stage in range(old.stages))
    return Numbering(old.stages, old.microbatches, old.extras + added), list(range(old.size, old.size + old.stages))


def refuse_kinds(programs: Programs, *kinds: str) -> None:
    """Raise ScheduleError when programs have an action of some kinds already."""
    numbering = programs.numbering
    refused = {n for n, action in enumerate(numbering.extras, numbering.base) if action.kind in kinds}
    if not refused:
        return
    for rank, program in enumerate(programs.ranks):
        for step, number in enumerate(program):
            if number in refused:
                raise ScheduleError(
                    f"rank {rank}, step {step}: {numbering.text(number)} is there already; take compute_only() of the "
                    "schedule before it is lowered again"
                )
