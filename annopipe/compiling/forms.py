"""The form of a stretch: what there is to compile, without names, so that equal stretches have equal forms.

A form is a JSON text, so it can be hashed, kept on disk and compiled by another process. Symbols are renamed in the
order in which they come; every symbol in the size or stride of an input is an input itself, or Inductor would have
nothing to take it from.

    silu(x) * y  with x, y: [u7, 64]      ->      s0: int, a: float32 [s0, 64], b: float32 [s0, 64]; silu a; mul %0 b
"""

import itertools
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from annopipe.compiling.refusals import kind_refusal
from annopipe.compiling.stretches import Cut, Stretch
from annopipe.graphs import meta
from annopipe.graphs.ops import is_getitem, is_operator
from annopipe.graphs.stage_graph import input_nodes

__all__ = ["Bound", "Compiled", "NotCompiled", "Source", "bind", "numbers_of", "strides_of"]

# Takes the values of a form's inputs in one list, which it empties; returns those of its outputs.
Compiled = Callable[[list[Any]], Sequence[Any]]

# A node, or the extent of a node's dimension.
Source = tuple[fx.Node, int | None]
_FUNCTIONS = frozenset({"Max", "Min", "FloorDiv", "Mod", "PythonMod"})
_FAR = 2**62
_SYMBOLIC = "a number that is not an integer"


class NotCompiled(Exception):  # noqa: N818 (no error: the stretch runs eagerly)
    """A stretch has no form, or its form cannot be compiled; the text says why."""


class Bound:
    """A stretch as a call of its form.

    Attributes:
        stretch: which.
        form: as JSON.
        inputs: what it is called with.
        outputs: the nodes whose values it returns.
    """

    def __init__(self, stretch: Stretch, form: str, inputs: Sequence[Source], outputs: Sequence[fx.Node]) -> None:
        self.stretch, self.form = stretch, form
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)


def numbers_of(cut: Cut, graph: fx.Graph) -> dict[tuple[str, Any], fx.Node]:
    """For each lane and expression the first number that is known without computation."""
    found: dict[tuple[str, Any], fx.Node] = {}
    free: set[fx.Node] = set()
    for node in (*input_nodes(graph), *cut.program):
        value = meta.value(node)
        if not isinstance(value, torch.SymInt):
            continue
        if node.op == "placeholder" or node in cut.fixed or all(n in free for n in node.all_input_nodes):
            free.add(node)
            found.setdefault((_lane(node), value.node.expr), node)
    return found


def bind(stretch: Stretch, cut: Cut, numbers: Mapping[tuple[str, Any], fx.Node]) -> Bound:
    """The form of a stretch, and what to call it with.

    Raises NotCompiled when it has none.
    """
    return _Binder(stretch, cut, numbers).bound()


class _Binder:
    def __init__(self, stretch: Stretch, cut: Cut, numbers: Mapping[tuple[str, Any], fx.Node]) -> None:
        self._stretch, self._cut, self._numbers = stretch, cut, numbers
        self._members = frozenset(stretch.nodes)
        self._lane = _lane(stretch.nodes[0])
        self._inputs: dict[Source, int] = {}
        self._values: list[Any] = []  # of each input: a fake tensor, or an expression
        self._steps: list[list[Any]] = []
        self._made: dict[fx.Node, int] = {}
        self._symbols: dict[sympy.Symbol, str] = {}
        self._ranges: dict[sympy.Symbol, list[int | None]] = {}

    def bound(self) -> Bound:
        for node in self._stretch.nodes:
            self._step(node)
        outputs = [node for node in self._stretch.nodes if self._leaves(node)]
        for symbol in self._free_symbols():
            self._take_number(symbol)
        inputs = [self._described(value) for value in self._values]
        form = {
            "inputs": inputs,
            "steps": self._steps,
            "outputs": [self._made[node] for node in outputs],
            "dtypes": [str(meta.value(node).dtype).removeprefix("torch.") for node in outputs],
            "ranges": [self._ranges.get(symbol, [0, None]) for symbol in self._symbols],
        }
        return Bound(self._stretch, json.dumps(form, separators=(",", ":")), list(self._inputs), outputs)

    def _leaves(self, node: fx.Node) -> bool:
        """Whether something outside takes the value, perhaps through views."""
        seen, pending = set[fx.Node](), list(node.users)
        while pending:
            user = pending.pop()
            if user in self._cut.transparent and user not in seen:
                seen.add(user)
                pending += user.users
            elif user not in self._members and user not in seen:
                if isinstance(meta.value(node), (list, tuple)):
                    raise NotCompiled("several results at once leave it")
                return True
        return False

    def _step(self, node: fx.Node) -> int:
        if node not in self._made:
            kwargs = {name: self._encoded(a) for name, a in node.kwargs.items()}
            step = [_name_of(node), [self._encoded(a) for a in node.args], kwargs]
            self._made[node] = len(self._steps)
            self._steps.append(step)
        return self._made[node]

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self._of_node(value)
        if isinstance(value, (list, tuple)):
            return [self._encoded(each) for each in value]
        if isinstance(value, torch.SymInt):
            return {"in": self._take_number(value.node.expr, value)}
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        for kind in ("dtype", "memory_format", "layout"):
            if isinstance(value, getattr(torch, kind)):
                return {kind: str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        raise NotCompiled(f"an argument is a {type(value).__name__}")

    def _of_node(self, node: fx.Node) -> Any:
        if node in self._members:
            return {"%": self._step(node)}
        value = meta.value(node)
        if meta.is_number(node):
            if isinstance(value, torch.SymInt):
                return self._of_number(node, value)
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                raise NotCompiled(_SYMBOLIC)
            return self._encoded(value)
        if node in self._cut.transparent:
            return {"%": self._step(node)}
        if not isinstance(value, torch.Tensor):
            raise NotCompiled(f"{node.name}, which it takes, is no tensor")
        if why := kind_refusal(value):
            raise NotCompiled(f"what it takes is {why}")
        return {"in": self._take((node, None), value)}

    def _of_number(self, node: fx.Node, value: torch.SymInt) -> Any:
        expression = value.node.expr
        if expression.is_number:
            return int(expression)
        if node not in self._cut.transparent or self._known(expression) is not None:
            return {"in": self._take_number(expression, value, node)}
        return {"%": self._step(node)}

    def _known(self, expression: Any) -> fx.Node | None:
        """A number that is there before the stretch, whatever the order."""
        found = self._numbers.get((self._lane, expression))
        if found is None or found.op == "placeholder":
            return found
        return found if self._cut.needs[found] & ~self._stretch.needs == 0 else None

    def _take_number(self, expression: Any, value: torch.SymInt | None = None, node: fx.Node | None = None) -> int:
        if value is not None:
            self._note_ranges(value)
        for (source, dim), at in self._inputs.items():
            known = self._values[at]
            if known == expression and (dim is not None or not isinstance(known, torch.Tensor)):
                return self._inputs[source, dim]
        if (found := self._known(expression) or node) is not None:
            return self._take((found, None), expression)
        for (source, dim), at in list(self._inputs.items()):
            tensor = self._values[at]
            if dim is None and isinstance(tensor, torch.Tensor):
                for own, size in enumerate(tensor.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr == expression:
                        return self._take((source, own), expression)
        raise NotCompiled(f"its sizes depend on {expression}, which is no number of the graph")

    def _take(self, source: Source, value: Any) -> int:
        if source not in self._inputs:
            self._inputs[source] = len(self._values)
            self._values.append(value)
        return self._inputs[source]

    def _free_symbols(self) -> list[sympy.Symbol]:
        """Those of the inputs, in the order in which they come."""
        found: dict[sympy.Symbol, None] = {}
        for value in self._values:
            extents = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
            for extent in extents:
                if isinstance(extent, torch.SymInt):
                    self._note_ranges(extent)
                    extent = extent.node.expr  # noqa: PLW2901
                if isinstance(extent, sympy.Expr):
                    found.update(dict.fromkeys(sorted(extent.free_symbols, key=str)))
        return list(found)

    def _note_ranges(self, value: torch.SymInt) -> None:
        for symbol in value.node.expr.free_symbols:
            known = value.node.shape_env.var_to_range.get(symbol)
            if known is not None and symbol not in self._ranges:
                self._ranges[symbol] = [_finite(known.lower), _finite(known.upper)]

    def _described(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return {"number": self._text(value)}
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": str(value.device),
            "shape": [self._text(extent) for extent in value.shape],
            "strides": [self._text(stride) for stride in strides_of(value)],
        }

    def _text(self, extent: Any) -> int | str:
        """A size with renamed symbols."""
        expression = extent.node.expr if isinstance(extent, torch.SymInt) else extent
        if isinstance(expression, int) or expression.is_number:
            return int(expression)
        unknown = {type(f).__name__ for f in expression.atoms(sympy.core.function.Application)} - _FUNCTIONS
        if unknown:
            raise NotCompiled(f"a size is {expression}")
        for symbol in sorted(expression.free_symbols, key=str):
            self._symbols.setdefault(symbol, f"s{len(self._symbols)}")
        renamed = {symbol: sympy.Symbol(name) for symbol, name in self._symbols.items()}
        return str(expression.xreplace(renamed))


def strides_of(value: torch.Tensor) -> tuple[Any, ...]:
    """How an input of a form is laid out: as traced, or in one piece where that was an expanded tensor.

    Raises NotCompiled for an expanded one whose sizes depend on data.
    """
    strides = tuple(value.stride())
    if not any(isinstance(stride, int) and stride == 0 for stride in strides):
        return strides
    if not all(isinstance(size, int) for size in value.shape):
        raise NotCompiled("it takes an expanded tensor of a size that depends on data")
    return tuple(itertools.accumulate([1, *reversed(value.shape[1:])], operator.mul))[::-1] if value.dim() else ()


def _lane(node: fx.Node) -> str:
    """The lane of a combined graph that a node is in; symbols of two lanes have nothing in common."""
    at = meta.placement(node)
    while at is None and node.users:
        node = next(iter(node.users))
        at = meta.placement(node)
    return "" if at is None else at.key.rpartition(".")[0]


def _name_of(node: fx.Node) -> str:
    target: Any = node.target
    if is_operator(target):
        return f"{target.namespace}::{target.__name__}"
    if is_getitem(node) or getattr(target, "__module__", "") in ("_operator", "math"):
        return f"{target.__module__}:{target.__name__}"
    raise NotCompiled(f"{getattr(target, '__name__', target)} is no operator")


def _finite(bound: Any) -> int | None:
    return int(bound) if isinstance(bound, sympy.Integer) and abs(int(bound)) < _FAR else None
