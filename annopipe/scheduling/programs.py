"""What every rank does, as numbers: the plain data that checks, lowering, CSV and simulation work on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.numbering import Numberer, Numbering
from annopipe.scheduling.placement import Placement, whole_number

__all__ = ["Programs"]


@dataclass(frozen=True)
class Programs:
    """One list of action numbers per rank, with what the numbers mean.

    Attributes:
        placement: which rank holds which stage, and what flows where.
        numbering: what the numbers mean; its extras are in the order in which the programs name them.
        ranks: the numbers, rank by rank, in the order in which the rank does them.
    """

    placement: Placement
    numbering: Numbering
    ranks: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, placement: Placement, microbatches: int, ranks: Sequence[Iterable[Action | str]]) -> "Programs":
        """Number the actions of every rank; texts are parsed.

        Raises ScheduleError for what is no action, a stage or a microbatch that is not there, or another count of ranks
        than the placement has; the message names rank and step.

        >>> from annopipe.scheduling import placement
        >>> Programs.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]]).ranks
        ((0, 2), (1, 3))
        """
        if not isinstance(placement, Placement):
            raise ScheduleError(
                f"placement is {placement!r}; make one with annopipe.placement, such as linear(ranks=2)"
            )
        if not isinstance(ranks, Sequence) or isinstance(ranks, str):
            raise ScheduleError(f"{ranks!r} is no list with the actions of each rank, such as [['0F0', '0B0']]")
        if len(ranks) != placement.ranks:
            raise ScheduleError(f"there are actions for {len(ranks)} ranks, and the placement has {placement.ranks}")
        numberer = Numberer(placement.stages, whole_number(microbatches, "microbatches"))
        numbered = [_number(numberer, rank, actions) for rank, actions in enumerate(ranks)]
        return cls(placement, numberer.numbering(), tuple(numbered))

    @classmethod
    def of_numbers(
        cls, placement: Placement, microbatches: int, ranks: Sequence[Sequence[tuple[int, ...]]]
    ) -> "Programs":
        """Programs from the numbers of F, B, I and W; a tuple of several numbers is a combination.

        >>> from annopipe.scheduling import placement
        >>> Programs.of_numbers(placement.v(1), 2, [[(0,), (2,), (1, 6)]]).texts()
        [['0F0', '1F0', '(0F1;1B0)OVERLAP_F_B']]
        """
        plain = Numbering(placement.stages, microbatches)
        numberer = Numberer(placement.stages, microbatches)
        numbered = tuple(
            tuple(
                chosen[0] if len(chosen) == 1 else numberer.number(overlap(*map(plain.action, chosen)))
                for chosen in program
            )
            for program in ranks
        )
        return cls(placement, numberer.numbering(), numbered)

    @classmethod
    def numbered(cls, placement: Placement, numbering: Numbering, ranks: Sequence[Sequence[int]]) -> "Programs":
        """The same programs with the extras in the order in which the programs name them, and no others.

        Programs that were made in different ways are then equal when their actions are.
        """
        base, extras = numbering.base, numbering.extras
        if not extras:
            return cls(placement, numbering, tuple(map(tuple, ranks)))
        new: dict[int, int] = {}
        for program in ranks:
            for number in program:
                if number >= base:
                    new.setdefault(number, base + len(new))
        renamed = tuple(tuple([new.get(number, number) for number in program]) for program in ranks)
        kept = tuple(extras[number - base] for number in new)
        return cls(placement, Numbering(numbering.stages, numbering.microbatches, kept), renamed)

    @property
    def microbatches(self) -> int:
        """How many microbatches a step has."""
        return self.numbering.microbatches

    def actions(self, rank: int) -> tuple[Action, ...]:
        """The actions of one rank."""
        return tuple(map(self.numbering.action, self.ranks[rank]))

    def text(self, rank: int, step: int) -> str:
        """The text of the action of a rank at a step.

        >>> from annopipe.scheduling import placement
        >>> Programs.of(placement.linear(1), 1, [["0F0", "0B0"]]).text(0, 1)
        '0B0'
        """
        return self.numbering.text(self.ranks[rank][step])

    def texts(self) -> list[list[str]]:
        """Every action as text, rank by rank.

        >>> from annopipe.scheduling import placement
        >>> Programs.of(placement.linear(1), 1, [["0F0", "0B0"]]).texts()
        [['0F0', '0B0']]
        """
        return [[self.numbering.text(number) for number in program] for program in self.ranks]


def _number(numberer: Numberer, rank: int, actions: Iterable[Action | str]) -> tuple[int, ...]:
    program: list[int] = []
    if not isinstance(actions, Iterable):
        raise ScheduleError(f"rank {rank}: {actions!r} is no list of actions, such as ['0F0', '0B0']")
    try:
        for given in actions:
            program.append(numberer.number(_action(given)))
    except ScheduleError as error:
        raise ScheduleError(f"rank {rank}, step {len(program)}: {error}") from None
    return tuple(program)


def _action(given: Action | str) -> Action:
    if isinstance(given, str):
        return Action.parse(given)
    if not isinstance(given, Action):
        raise ScheduleError(f"{given!r} is not an action: give one, or its text; an idle step is left out")
    return given
