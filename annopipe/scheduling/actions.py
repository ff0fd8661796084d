"""One thing that a rank does in a pipeline schedule, and the text that stands for it everywhere.

The text is torch.distributed.pipelining's own: stage, kind, microbatch. It is the cell of a CSV file, the label in a
picture and the name in an error message.

    2F0                     stage 2 computes the forward of microbatch 0
    2B0  2I0  2W0           its full backward, its backward-input, its backward-weight
    2SEND_F0  3RECV_F0      stage 2 sends its activations, stage 3 receives them
    3SEND_B0  2RECV_B0      stage 3 sends the gradient of its input, stage 2 receives it
    2UNSHARD  2RESHARD  2REDUCE_GRAD      once per stage, for its parameters
    (0F1;1B0)OVERLAP_F_B    both as one combined graph; any number of parts
    2OFFLOAD0  2OPTIMIZER   an operation that a user adds; with or without a microbatch

Beyond torch's: ``2F0/2`` runs as two nano-batches, and a combination without a forward and a backward is ``OVERLAP``.
"""

import re
from dataclasses import dataclass
from typing import Final

from annopipe.errors import ScheduleError

__all__ = [
    "BACKWARDS",
    "BUILTIN_KINDS",
    "COMPUTE",
    "MESSAGES",
    "OVERLAPS",
    "PARAMETERS",
    "Action",
    "overlap",
]

COMPUTE: Final = ("F", "B", "I", "W")
BACKWARDS: Final = ("B", "I", "W")
MESSAGES: Final = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
PARAMETERS: Final = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
OVERLAPS: Final = ("OVERLAP_F_B", "OVERLAP")
BUILTIN_KINDS: Final = frozenset((*COMPUTE, *MESSAGES, *PARAMETERS, *OVERLAPS))

_OPERATION = re.compile(r"[A-Z][A-Z_]*[A-Z]")
_NUMBER = r"(?:0|[1-9][0-9]*)"
_TEXT = re.compile(rf"({_NUMBER})([A-Z](?:[A-Z_]*[A-Z])?)({_NUMBER})?(?:/({_NUMBER}))?", re.ASCII)
_COMBINED = re.compile(r"\(([^()]*)\)([A-Z_]+)")


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a pipeline schedule; ``str(action)`` and ``Action.parse(text)`` are inverse to each other.

    Attributes:
        kind: "F", "B", "I", "W", "SEND_F", ..., or the name of an operation that a user adds: capitals and underscores,
            two letters or more.
        stage: which stage; for a combination that of its first part.
        microbatch: which microbatch, None for what is done once per stage.
        parts: what a combination runs together; empty otherwise.
        nano_batches: how many lanes an F, B, I or W runs as; 1 is the whole microbatch at once.

    Raises ScheduleError when the fields do not fit together.

    >>> str(Action("F", 2, 0)), str(overlap(Action("F", 0, 1), Action("B", 1, 0)))
    ('2F0', '(0F1;1B0)OVERLAP_F_B')
    >>> Action.parse("3SEND_F1")
    Action(kind='SEND_F', stage=3, microbatch=1, parts=(), nano_batches=1)
    """

    kind: str
    stage: int
    microbatch: int | None = None
    parts: tuple["Action", ...] = ()
    nano_batches: int = 1

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ScheduleError(f"{self.kind!r} of stage {self.stage}, microbatch {self.microbatch}: {problem}")

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind}"
        microbatch = "" if self.microbatch is None else self.microbatch
        lanes = f"/{self.nano_batches}" if self.nano_batches > 1 else ""
        return f"{self.stage}{self.kind}{microbatch}{lanes}"

    @property
    def is_compute(self) -> bool:
        """Whether it is F, B, I, W or a combination of them."""
        return self.kind in COMPUTE or bool(self.parts)

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read one action; the whole text must be one.

        Raises ScheduleError for anything else, and says what was found.

        >>> str(Action.parse("(0F1;1B0)OVERLAP_F_B"))
        '(0F1;1B0)OVERLAP_F_B'
        >>> Action.parse("0FOO0")
        Action(kind='FOO', stage=0, microbatch=0, parts=(), nano_batches=1)
        """
        combined = _COMBINED.fullmatch(text)
        if combined:
            return _parse_combination(text, *combined.groups())
        single = _TEXT.fullmatch(text)
        if not single:
            raise ScheduleError(
                f"{text!r} is not an action: write stage, kind and microbatch, such as 2F0, 1UNSHARD, 3SEND_F1 or "
                "(0F1;1B0)OVERLAP_F_B"
            )
        stage, kind, microbatch, lanes = single.groups()
        action = cls(
            kind, int(stage), None if microbatch is None else int(microbatch), (), 1 if lanes is None else int(lanes)
        )
        if str(action) != text:
            raise ScheduleError(f"{text!r} is not an action: {str(action)!r} is how it is written")
        return action


def overlap(*parts: Action) -> Action:
    """Combine actions into one that runs them together.

    Raises ScheduleError for fewer than two parts, or parts that are not F, B, I or W.

    >>> str(overlap(Action("F", 0, 2), Action("F", 0, 3)))
    '(0F2;0F3)OVERLAP'
    """
    return Action(_combined_kind(parts), parts[0].stage if parts else 0, None, parts)


def _combined_kind(parts: tuple[Action, ...]) -> str:
    kinds = {part.kind for part in parts}
    return "OVERLAP_F_B" if "F" in kinds and kinds & {"B", "I"} else "OVERLAP"


def _parse_combination(text: str, inside: str, kind: str) -> Action:
    action = overlap(*(Action.parse(part) for part in inside.split(";")))
    if action.kind != kind:
        raise ScheduleError(f"{text!r} is not an action: {str(action)!r} is how this combination is written")
    return action


def _problem(action: Action) -> str:
    """What is wrong with the fields; "" if nothing is."""
    kind = action.kind
    if kind in OVERLAPS:
        if len(action.parts) < 2 or any(part.kind not in COMPUTE for part in action.parts):
            return "a combination has two parts or more, each F, B, I or W"
        if len(set(action.parts)) < len(action.parts):
            return "a combination runs each part once"
        if kind != _combined_kind(action.parts):
            return f"these parts make a combination of kind {_combined_kind(action.parts)}"
        return ""
    if action.parts:
        return "only a combination has parts"
    if action.stage < 0 or (action.microbatch is not None and action.microbatch < 0):
        return "stages and microbatches count from 0"
    if kind in PARAMETERS:
        return "it is done once per stage and has no microbatch" if action.microbatch is not None else ""
    if kind in COMPUTE or kind in MESSAGES:
        if action.microbatch is None:
            return "it needs a microbatch, such as 0 in 2F0"
        if action.nano_batches < 1 or (action.nano_batches > 1 and kind in MESSAGES):
            return "F, B, I and W run as 1 nano-batch or more, nothing else does"
        return ""
    if not _OPERATION.fullmatch(kind):
        return "an operation's name is two or more capitals, with underscores inside, such as OFFLOAD"
    return "only F, B, I and W run as nano-batches" if action.nano_batches != 1 else ""
