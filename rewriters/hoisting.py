"""Take a call out of its statement into a variable, so that a tag covers it alone; unsafe, for it reorders calls."""

import itertools
from collections.abc import Collection

import libcst as cst

from rewriters.reading import Found
from rewriters.surroundings import Statement
from rewriters.walking import descendants

__all__ = ["hoistable", "is_whole", "new_name"]

_CONDITIONAL = (cst.IfExp, cst.BooleanOperation, cst.ListComp, cst.SetComp, cst.DictComp, cst.NamedExpr, cst.Comparison)


def is_whole(found: Found, line: Statement) -> bool:
    """Whether a statement does nothing but make the call and keep, return or drop its result."""
    if not isinstance(line, cst.SimpleStatementLine):
        return True
    small = line.body[0]
    return isinstance(small, (cst.Assign, cst.AnnAssign, cst.Return, cst.Expr)) and small.value is found.node


def hoistable(found: Found, line: Statement, others: Collection[cst.CSTNode]) -> str:
    """Why a call cannot come before its statement; "" if it can.

    Args:
        others: calls of the same statement that are to be tagged, too.
    """
    around, inside = set(map(id, found.stack[:-1])), set(map(id, descendants(found.node)))
    if any(id(other) in around | inside for other in others):
        return "one tagged call is an argument of another: give each a statement of its own"
    for node in reversed(found.stack):
        if node is line:
            break
        if isinstance(node, _CONDITIONAL):
            return "the call may not run, or run several times, in its statement: give it a statement of its own"
    if isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], (cst.Assert, cst.Del)):
        return "the call is in an assert or del: give it a statement of its own"
    return ""


def new_name(wanted: str, taken: set[str]) -> str:
    """A name that is not taken, and from now on is.

    >>> new_name("out", {"out"})
    'out_2'
    """
    numbered = (f"{wanted}_{number}" for number in itertools.count(2))
    name = next(name for name in itertools.chain([wanted], numbered) if name not in taken)
    taken.add(name)
    return name
