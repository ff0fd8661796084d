"""Small arithmetic in text, so that a specification can be printed, compared and varied by a program.

    p - r               the in-flight limit of 1F1B, on every rank
    2*(p - r) - 1       that of ZB-H2
    k // p, c, k        the order of forwards in interleaved 1F1B

Whole numbers, the names below, + - * // %, comparisons (1 or 0), min(), max(), and commas between the keys of an order.

    p  ranks                r  this rank          m  microbatches
    v  chunks per rank      s  stage              c  chunk: how-manieth stage of its rank
    k  microbatch, counted in its own copy of the model
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from annopipe.errors import ScheduleError

__all__ = ["NAMES", "Formula", "compiled", "compiled_keys"]

NAMES = ("p", "r", "m", "v", "s", "c", "k")
_Evaluate = Callable[[Mapping[str, int]], int]
_LONGEST = 200  # characters; more is a slip, and could be nested deeper than Python goes

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[[Sequence[int]], int]] = {"min": min, "max": max}


@dataclass(frozen=True, slots=True)
class Formula:
    """One formula, ready to be evaluated: call it with the values of its names."""

    text: str
    names: frozenset[str]
    evaluate: _Evaluate = field(repr=False, compare=False)

    def __call__(self, values: Mapping[str, int]) -> int:
        """The value."""
        return self.evaluate(values)


@lru_cache(maxsize=512)
def compiled(text: str, names: tuple[str, ...] = NAMES) -> Formula:
    """A formula as a function of the values of its names.

    Raises ScheduleError for anything else than the arithmetic above, with the text and the part that is wrong.

    >>> compiled("2*(p - r) - 1")({"p": 4, "r": 1})
    5
    """
    return _formula(_parsed(text), text, names)


@lru_cache(maxsize=512)
def compiled_keys(text: str, names: tuple[str, ...] = NAMES) -> tuple[Formula, ...]:
    """The keys of an order, one formula for each part between commas.

    >>> [key({"p": 4, "k": 9, "c": 1}) for key in compiled_keys("k // p, c, k")]
    [2, 1, 9]
    """
    tree = _parsed(text)
    parts = tree.elts if isinstance(tree, ast.Tuple) and tree.elts else [tree]
    return tuple(_formula(part, text, names) for part in parts)


def _formula(tree: ast.expr, text: str, names: tuple[str, ...]) -> Formula:
    used = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) & frozenset(names)
    try:
        return Formula(ast.unparse(tree), used, _node(tree, text, names))
    except RecursionError as error:
        raise ScheduleError(f"{text!r} is not a formula: it is nested too deep") from error


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ScheduleError(f"a formula of {len(text)} characters; write one of at most {_LONGEST}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ScheduleError(
            f"{text!r} is not a formula; write whole numbers, {', '.join(NAMES)}, + - * // %"
        ) from error


def _node(tree: ast.expr, text: str, names: tuple[str, ...]) -> _Evaluate:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        value = tree.value
        return lambda _: value
    if isinstance(tree, ast.Name) and tree.id in names:
        name = tree.id
        return lambda values: values[name]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _node(tree.operand, text, names)
        return lambda values: -inner(values)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _binary(_OPERATORS[type(tree.op)], tree.left, tree.right, text, names)
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _OPERATORS:
        return _binary(_OPERATORS[type(tree.ops[0])], tree.left, tree.comparators[0], text, names)
    function = _FUNCTIONS.get(tree.func.id) if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else None
    if isinstance(tree, ast.Call) and function and tree.args and not tree.keywords:
        arguments = [_node(argument, text, names) for argument in tree.args]
        return lambda values: function([argument(values) for argument in arguments])
    raise ScheduleError(
        f"{ast.unparse(tree)!r} in {text!r} is not known here; use whole numbers, {', '.join(names)}, + - * // %, "
        "comparisons, min() and max()"
    )


def _binary(
    operation: Callable[[int, int], int], left: ast.expr, right: ast.expr, text: str, names: tuple[str, ...]
) -> _Evaluate:
    first, second = _node(left, text, names), _node(right, text, names)

    def value(values: Mapping[str, int]) -> int:
        try:
            return int(operation(first(values), second(values)))
        except ZeroDivisionError:
            raise ScheduleError(f"{text!r} divides by zero where {dict(values)}") from None

    return value
