"""A number for every action, so that checks, lowering and simulation work on flat lists of numbers.

F, B, I, W and the four messages of every stage and microbatch come first, in blocks:

    number = (position of the kind * stages + stage) * microbatches + microbatch

Everything else (combinations, parameter actions, operations of users, nano-batched actions) is an entry of `extras`,
numbered behind the blocks. Action objects exist only at the edge: a schedule of 64 ranks and 1,024 microbatches has
half a million of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import COMPUTE, MESSAGES, Action

__all__ = ["BLOCKS", "Numberer", "Numbering"]

BLOCKS = (*COMPUTE, *MESSAGES)
_POSITION = {kind: position for position, kind in enumerate(BLOCKS)}


@dataclass(frozen=True)
class Numbering:
    """Numbers of actions for a count of stages and microbatches.

    >>> numbering = Numbering(stages=2, microbatches=3)
    >>> numbering.first("B", 1), numbering.number(Action("B", 1, 2)), str(numbering.action(11))
    (9, 11, '1B2')
    """

    stages: int
    microbatches: int
    extras: tuple[Action, ...] = ()

    @property
    def block(self) -> int:
        """How many numbers each kind has."""
        return self.stages * self.microbatches

    @property
    def base(self) -> int:
        """The number of the first extra."""
        return len(BLOCKS) * self.block

    @property
    def size(self) -> int:
        """One more than the largest number."""
        return self.base + len(self.extras)

    def first(self, kind: str, stage: int = 0) -> int:
        """The number of a kind's action for microbatch 0 of a stage; those of the other microbatches follow."""
        return (_POSITION[kind] * self.stages + stage) * self.microbatches

    @cached_property
    def _numbers(self) -> dict[Action, int]:
        return {action: self.base + index for index, action in enumerate(self.extras)}

    @cached_property
    def parts(self) -> dict[int, tuple[int, ...]]:
        """For each extra the numbers of the F, B, I and W that it stands for; none for parameters and operations.

        A combination stands for its parts, and what runs as nano-batches for the same action as a whole.

        >>> found = Numbering(1, 2, (Action.parse("(0F1;0B0)OVERLAP_F_B"), Action.parse("0F0/2"), Action("UNSHARD", 0)))
        >>> found.parts
        {16: (1, 2), 17: (0,), 18: ()}
        """
        m = self.microbatches
        first = {kind: self.first(kind) for kind in COMPUTE}
        found: dict[int, tuple[int, ...]] = {}
        for number, action in enumerate(self.extras, self.base):
            parts = action.parts or ((action,) if action.kind in first else ())
            found[number] = tuple([first[part.kind] + part.stage * m + (part.microbatch or 0) for part in parts])
        return found

    def number(self, action: Action) -> int:
        """The number of an action; KeyError for an extra that is not here.

        Raises ScheduleError when there is no such stage or microbatch.
        """
        refuse_out_of_range(action, self.stages, self.microbatches)
        if action.kind in _POSITION and action.nano_batches == 1:
            return self.first(action.kind, action.stage) + (action.microbatch or 0)
        return self._numbers[action]

    def action(self, number: int) -> Action:
        """The action that a number stands for."""
        if number >= self.base:
            return self.extras[number - self.base]
        position, rest = divmod(number, self.block)
        stage, microbatch = divmod(rest, self.microbatches)
        return Action(BLOCKS[position], stage, microbatch)

    def kind(self, number: int) -> str:
        """The kind of the action that a number stands for, without making the action."""
        return BLOCKS[number // self.block] if number < self.base else self.extras[number - self.base].kind

    def text(self, number: int) -> str:
        """The text of the action that a number stands for."""
        if number >= self.base:
            return str(self.extras[number - self.base])
        position, rest = divmod(number, self.block)
        stage, microbatch = divmod(rest, self.microbatches)
        return f"{stage}{BLOCKS[position]}{microbatch}"


class Numberer:
    """Gives numbers to actions, and extras theirs as they come.

    >>> numberer = Numberer(stages=2, microbatches=1)
    >>> numberer.number(Action("F", 1, 0)), numberer.number(Action("UNSHARD", 1)), numberer.numbering().extras
    (1, 16, (Action(kind='UNSHARD', stage=1, microbatch=None, parts=(), nano_batches=1),))
    """

    def __init__(self, stages: int, microbatches: int, extras: Iterable[Action] = ()) -> None:
        self._plain = Numbering(stages, microbatches)
        self._base = self._plain.base
        self._extras: dict[Action, int] = {}
        for action in extras:
            self.number(action)

    def number(self, action: Action) -> int:
        """The number of an action, a new one for an extra that was not seen before.

        Raises ScheduleError when there is no such stage or microbatch.
        """
        if action.kind in _POSITION and action.nano_batches == 1:
            return self._plain.number(action)
        refuse_out_of_range(action, self._plain.stages, self._plain.microbatches)
        return self._extras.setdefault(action, self._base + len(self._extras))

    def numbering(self) -> Numbering:
        """The numbering with every extra seen so far."""
        return Numbering(self._plain.stages, self._plain.microbatches, tuple(self._extras))


def refuse_out_of_range(action: Action, stages: int, microbatches: int) -> None:
    """Raise ScheduleError when an action, or a part of it, names a stage or a microbatch that is not there."""
    for single in action.singles:
        if single.stage >= stages:
            raise ScheduleError(f"{action}: there is no stage {single.stage}; stages are 0 to {stages - 1}")
        if single.microbatch is not None and single.microbatch >= microbatches:
            raise ScheduleError(
                f"{action}: there is no microbatch {single.microbatch}; microbatches are 0 to {microbatches - 1}"
            )
