"""What runs in more than one lane, in a few letters: names for the costs of nano-batches and combinations.

    F/2       a forward as two nano-batches             2F0/2
    F+F       two forwards together                     (2F0;2F1)OVERLAP
    F+B/2     a pair whose backward runs as two         (2F5;2B0/2)OVERLAP_F_B

Kinds stand in the order F, B, I, W, of one kind those with fewer nano-batches first. One forward with one backward,
both whole, has no such name: its costs are `FB`.
"""

import re
from dataclasses import replace

from annopipe.errors import CostError
from annopipe.scheduling.actions import COMPUTE, Action

__all__ = ["check_lanes", "lanes_text", "of_lanes", "whole", "with_parts"]

_PART = re.compile(r"([FBIW])(?:/([1-9][0-9]{0,8}))?")


def lanes_text(action: Action) -> str:
    """The name of what an F, B, I, W or a combination runs together; "" for one lane, and for a whole F with a whole B.

    >>> [lanes_text(Action.parse(text)) for text in ("2F0/2", "(2F5;2B0/2)OVERLAP_F_B", "(0B1;0B2)OVERLAP", "2F0")]
    ['F/2', 'F+B/2', 'B+B', '']
    """
    if not action.parts and action.nano_batches == 1:
        return ""
    text = "+".join(_named(kind, count) for kind, count in _sorted(action))
    return "" if text == "F+B" else text


def of_lanes(action: Action) -> Action:
    """The part whose stage costs per stage are looked up with: the first in the order of the name.

    >>> str(of_lanes(Action.parse("(3B0/2;2F5)OVERLAP_F_B")))
    '2F5'
    """
    return min(action.parts, key=lambda part: _order(part.kind, part.nano_batches)) if action.parts else action


def whole(action: Action) -> Action:
    """The same action with every part as a whole.

    >>> str(whole(Action.parse("(2F5;2B0/2)OVERLAP_F_B")))
    '(2F5;2B0)OVERLAP_F_B'
    """
    if action.parts:
        return replace(action, parts=tuple(replace(part, nano_batches=1) for part in action.parts))
    return action if action.nano_batches == 1 else replace(action, nano_batches=1)


def with_parts(action: Action, parts: int) -> Action:
    """An F, B, I or W as so many nano-batches.

    >>> str(with_parts(Action("F", 2, 0), 2))
    '2F0/2'
    """
    return replace(action, nano_batches=parts)


def check_lanes(name: str, where: str) -> None:
    """Raise CostError for what is no name of lanes, or not written as names are.

    >>> check_lanes("F+B/2", "lanes")
    """
    parts = [_PART.fullmatch(part) for part in name.split("+")]
    found = [(match[1], int(match[2] or 1)) for match in parts if match]
    usual = "+".join(_named(kind, count) for kind, count in sorted(found, key=lambda part: _order(*part)))
    if len(found) < len(parts) or (len(found) == 1 and found[0][1] == 1):
        raise CostError(
            f"{where} names {name!r}: it takes what runs in several lanes, such as 'F/2' (a forward as two "
            "nano-batches), 'F+F' or 'F+B/2'"
        )
    if usual == "F+B":
        raise CostError(f"{where} names {name!r}: a whole forward with a whole backward is 'FB'")
    if usual != name:
        raise CostError(f"{where} names {name!r}: {usual!r} is how this is written")


def _sorted(action: Action) -> list[tuple[str, int]]:
    return sorted(((part.kind, part.nano_batches) for part in action.singles), key=lambda part: _order(*part))


def _order(kind: str, count: int) -> tuple[int, int]:
    return COMPUTE.index(kind), count


def _named(kind: str, count: int) -> str:
    return kind if count == 1 else f"{kind}/{count}"
