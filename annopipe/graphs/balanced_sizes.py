"""What sizes that depend on data are when routing is balanced, for whoever has to assume a size before it is known.

needs       a traced joint graph, in which such sizes are symbols (u0, u1, ...).
does        records a number for each symbol that a rule covers, as the hint that PyTorch keeps for it beside the
            symbol. Every graph of the trace, however split or combined, refers to the same symbols.
guarantees  the graph stays as it is; a symbol that no rule covers has no number.

Rules, in program order; n rows are spread over k places as evenly as whole numbers allow, the first ones get more:
    exchange            a rank receives as many rows as it sends
    all_to_all_single   what a rank sends, and as much that it receives, is spread evenly over its peers
    split_with_sizes    the rows are spread evenly over the parts (over experts, in a loop over experts)
    bincount            there are no more bins than minlength, the number of experts, asks for

    32 rows -> exchange -> [u1]                       u1 = 32
    7 rows  -> split_with_sizes([u2, u3])             u2 = 4, u3 = 3
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.ops import is_operator

__all__ = ["balanced", "balanced_symbol", "evaluated", "record_balanced_sizes", "symbols"]

Lookup = Callable[[Any], int | None]  # from a symbol to its value


def record_balanced_sizes(graph: fx.Graph) -> None:
    """Record what every size of ``graph`` that depends on data is when routing is balanced."""
    for node in graph.nodes:
        name = node.target.name() if is_operator(node.target) else ""
        if name == "annopipe::exchange":
            _spread([_given(node.args[3])], _extent(node.args[0], 0))
        elif name.endswith("::all_to_all_single"):
            sent = _extent(node.args[0], 0)
            for position in (2, 1):
                _spread([_given(size) for size in node.args[position] or ()], sent)
        elif name == "aten::split_with_sizes":
            dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
            _spread([_given(size) for size in node.args[1]], _extent(node.args[0], dim))
        elif name == "aten::bincount":
            bins = _given(node.args[2] if len(node.args) > 2 else node.kwargs.get("minlength", 0))
            _spread([meta.value(node).shape[0]], balanced(bins) or None)


def symbols(size: Any) -> set[Any]:
    """The symbols that a size consists of; none for a number."""
    return set(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


def balanced(size: Any) -> int | None:
    """A size as a number when routing is balanced; None where no rule says."""
    return evaluated(size, lambda symbol: balanced_symbol(size, symbol))


def balanced_symbol(size: torch.SymInt, symbol: Any) -> int | None:
    """What ``symbol``, a part of ``size``, is when routing is balanced; None where no rule says."""
    hints: dict[Any, int] = size.node.shape_env.var_to_hint_override
    return hints.get(symbol)


def evaluated(size: Any, lookup: Lookup) -> int | None:
    """A size as a number, None where a symbol in it has none."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    values = {symbol: lookup(symbol) for symbol in symbols(size)}
    return None if None in values.values() else int(size.node.expr.xreplace(values))


def _given(argument: Any) -> Any:
    return meta.value(argument) if isinstance(argument, fx.Node) else argument


def _extent(argument: Any, dim: int) -> int | None:
    return balanced(meta.value(argument).shape[dim])


def _spread(sizes: Sequence[Any], total: int | None) -> None:
    """Give sizes that are not known yet what remains of ``total``, evenly."""
    known = [balanced(size) for size in sizes]
    missing = [size for size, value in zip(sizes, known, strict=True) if value is None]
    if total is None or not missing or not all(size.node.expr.is_symbol for size in missing):
        return
    share, more = divmod(max(0, total - sum(value or 0 for value in known)), len(missing))
    for number, size in enumerate(missing):
        size.node.shape_env.var_to_hint_override[size.node.expr] = share + (number < more)
