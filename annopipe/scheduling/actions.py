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

Beyond torch's: ``2F0/2`` runs as two nano-batches, a combination without a forward and a backward is ``OVERLAP``, and
operations of users. Each action has one text: no spaces, no leading zeros, numbers below a thousand million.
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
# Nine digits: a longer number is a slip, and Python itself refuses to read very long ones.
_LIMIT = 10**9
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
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

    Raises ScheduleError when the fields do not fit together, or a number is not a whole one from 0 to 999,999,999.

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
            raise ScheduleError(f"{self.kind!r} of stage {self.stage!r}, microbatch {self.microbatch!r}: {problem}")

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

    @property
    def singles(self) -> "tuple[Action, ...]":
        """What runs in it: the parts of a combination, else the action itself.

        >>> [str(single) for single in Action.parse("(0F1;1B0)OVERLAP_F_B").singles], str(Action("F", 2, 0).singles[0])
        (['0F1', '1B0'], '2F0')
        """
        return self.parts or (self,)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of what runs in it.

        >>> sorted(Action.parse("(0F1;1B0)OVERLAP_F_B").kinds)
        ['B', 'F']
        """
        return frozenset(single.kind for single in self.singles)

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read one action; the whole text must be one.

        Raises ScheduleError for anything else, and says what was found.

        >>> str(Action.parse("(0F1;1B0)OVERLAP_F_B"))
        '(0F1;1B0)OVERLAP_F_B'
        >>> Action.parse("0FOO0")
        Action(kind='FOO', stage=0, microbatch=0, parts=(), nano_batches=1)
        """
        single = _TEXT.fullmatch(text)
        if single:
            stage, kind, microbatch, lanes = single.groups()
            if lanes == "1":
                raise ScheduleError(f"{text!r} is not an action: {text[:-2]!r} is how it is written")
            return cls(kind, int(stage), int(microbatch) if microbatch else None, (), int(lanes) if lanes else 1)
        combined = _COMBINED.fullmatch(text)
        if combined:
            return _parse_combination(text, *combined.groups())
        raise ScheduleError(
            f"{text!r} is not an action: write stage, kind and microbatch, such as 2F0, 1UNSHARD, 3SEND_F1 or "
            "(0F1;1B0)OVERLAP_F_B"
        )


def overlap(*parts: Action) -> Action:
    """Combine actions into one that runs them together.

    Raises ScheduleError for fewer than two parts, or parts that are not F, B, I or W.

    >>> str(overlap(Action("F", 0, 2), Action("F", 0, 3)))
    '(0F2;0F3)OVERLAP'
    """
    return Action(_combined_kind(parts), getattr(parts[0], "stage", 0) if parts else 0, None, parts)


def _combined_kind(parts: tuple[Action, ...]) -> str:
    kinds = {part.kind for part in parts if isinstance(part, Action)}
    return "OVERLAP_F_B" if "F" in kinds and kinds & {"B", "I"} else "OVERLAP"


def _parse_combination(text: str, inside: str, kind: str) -> Action:
    try:
        action = overlap(*(Action.parse(part) for part in inside.split(";")))
    except ScheduleError as error:
        raise ScheduleError(f"{text!r} is not an action: {error}") from None
    if action.kind != kind:
        raise ScheduleError(f"{text!r} is not an action: {str(action)!r} is how this combination is written")
    return action


def _problem(action: Action) -> str:
    """What is wrong with the fields; "" if nothing is."""
    kind, stage, lanes = action.kind, action.stage, action.nano_batches
    microbatch = 0 if action.microbatch is None else action.microbatch
    # Not isinstance: True is no stage, and its text would not be a number.
    if type(stage) is not int or type(microbatch) is not int or not 0 <= stage < _LIMIT or not 0 <= microbatch < _LIMIT:
        return f"stages and microbatches are whole numbers from 0 to {_LIMIT - 1}"
    if type(lanes) is not int or not 1 <= lanes < _LIMIT or (lanes > 1 and kind not in COMPUTE):
        return "F, B, I and W run as 1 nano-batch or more, nothing else does"
    if kind in OVERLAPS:
        return _combination_problem(action)
    if action.parts:
        return "only a combination has parts"
    if kind in PARAMETERS:
        return "it is done once per stage and has no microbatch" if action.microbatch is not None else ""
    if kind in COMPUTE or kind in MESSAGES:
        return "it needs a microbatch, such as 0 in 2F0" if action.microbatch is None else ""
    if not isinstance(kind, str) or not _OPERATION.fullmatch(kind):
        kinds = ", ".join((*COMPUTE, *MESSAGES, *PARAMETERS))
        return (
            "an operation's name is two or more capitals, with underscores inside, such as OFFLOAD; other kinds are "
            f"{kinds}"
        )
    return ""


def _combination_problem(action: Action) -> str:
    parts = action.parts
    if not isinstance(parts, tuple) or not all(isinstance(part, Action) for part in parts):
        return "the parts of a combination are a tuple of actions"
    if len(parts) < 2 or any(part.kind not in COMPUTE for part in parts):
        return "a combination has two parts or more, each F, B, I or W"
    if len({(part.kind, part.stage, part.microbatch) for part in parts}) < len(parts):
        return "a combination runs each part once"
    if action.kind != _combined_kind(parts):
        return f"these parts make a combination of kind {_combined_kind(parts)}"
    if action.stage != parts[0].stage or action.microbatch is not None:
        return f"a combination has the stage of its first part, {parts[0].stage}, and no microbatch"
    return ""
