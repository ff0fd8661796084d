"""The sizes in a graph's fake values as numbers: what was traced, what balanced routing gives, or what the user says.

A size that depends on data is a symbol, "u1". Its value is, first rule that fits:
    given       by the lane's own name, "F.u1"; by the symbol, "u1"; or by the port that carries it, "size.sym_size_int"
                or "B.size.sym_size_int"
    balanced    recorded when the stage was traced: an exchange receives as many rows as it sends, spread evenly over
                peers and experts (annopipe/graphs/balanced_sizes.py); times the skew, on the busiest rank
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from annopipe.errors import CostError
from annopipe.graphs import meta
from annopipe.graphs.balanced_sizes import balanced_symbol, evaluated, symbols
from annopipe.graphs.failures import user_frame
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes
from annopipe.pytrees import tree_leaves

__all__ = ["Sizes"]


class Sizes:
    """Evaluates sizes of one graph.

    Args:
        skew: what sizes of balanced routing are multiplied by.

    Raises:
        CostError: a given size is for something that the graph does not have, or no size; a skew below 1.
    """

    def __init__(self, graph: StageGraph, given: Mapping[str, int] | None = None, skew: float = 1.0) -> None:
        if isinstance(skew, bool) or not isinstance(skew, (int, float)) or not 1.0 <= skew < math.inf:
            raise CostError(f"skew is {skew!r}: give how many times its even share the busiest rank gets, 1 or more")
        self._graph, self._skew = graph, skew
        self._given: dict[str, int] = {}
        given = {} if given is None else given
        ports = {port.name: node for port, node in zip(graph.inputs, input_nodes(graph.graph), strict=True)}
        known = _names(graph)
        for name, size in given.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise CostError(f"sizes[{name!r}] is {size!r}: a size is a whole number, not negative")
            carried = symbols(meta.value(ports[name])) if name in ports else set()
            if len(carried) == 1:
                lane = "" if name.startswith("size.") else name.partition(".")[0] + "."
                self._given[lane + str(carried.pop())] = size
            elif name in known:
                self._given[name] = size
            else:
                raise CostError(
                    f"sizes has {name!r}, which no value of this graph depends on: it depends on "
                    f"{', '.join(sorted(known)) or 'no data-dependent size'}"
                )

    def number(self, size: Any, node: fx.Node) -> int:
        """A size in a value that ``node`` reads or makes.

        Raises:
            CostError: naming the node, the symbol that has no value, and every other symbol that has none.
        """
        if isinstance(size, int):
            return size
        lane = _lane(node)

        def lookup(symbol: Any) -> int:
            known = self._value(lane, size, symbol)
            if known is None:
                raise self._unknown(size, symbol, node)
            return known

        number = evaluated(size, lookup)
        return 0 if number is None else number

    def _value(self, lane: str, size: Any, symbol: Any) -> int | None:
        for name in (f"{lane}{symbol}", str(symbol)):
            if name in self._given:
                return self._given[name]
        even = balanced_symbol(size, symbol)
        return even if even is None or self._skew == 1.0 else round(self._skew * even)

    def _unknown(self, size: Any, symbol: Any, node: fx.Node) -> CostError:
        untold = {str(s): None for lane, extent, s in _symbols(self._graph) if self._value(lane, extent, s) is None}
        sizes = ", ".join(f'"{name}": ...' for name in untold)
        at = meta.placement(node)
        region = f", in region {at.region}" if at and at.region else ""
        return CostError(
            f"the size of {node.name} depends on data ({size}{region}) and balanced routing does not say what "
            f"{symbol} is: pass sizes={{{sizes}}} to ap.costs.roofline, and to ap.overlap the result as costs; or "
            f"measure the costs with ap.costs.measure{user_frame(meta.stack(node))}"
        )

    def shape(self, tensor: torch.Tensor, node: fx.Node) -> tuple[int, ...]:
        """The extents of a fake tensor."""
        return tuple(self.number(extent, node) for extent in tensor.shape)

    def elements(self, tensor: torch.Tensor, node: fx.Node) -> int:
        """How many different elements a fake tensor has in memory: an expanded dimension has one."""
        strided = tensor.layout == torch.strided
        repeated = [strided and isinstance(stride, int) and stride == 0 for stride in _strides(tensor)]
        extents = zip(self.shape(tensor, node), repeated, strict=True)
        return math.prod(min(extent, 1) if again else extent for extent, again in extents)


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.stride()) if tensor.layout == torch.strided else (1,) * tensor.dim()


def _lane(node: fx.Node) -> str:
    """What a node's key has in front of its name: "F." in lane F of a multiplexed graph, else ""."""
    lane, dot, _ = meta.key(node).rpartition(".")
    return lane + dot


def _symbols(graph: StageGraph) -> Iterator[tuple[str, Any, Any]]:
    """Every symbol in a value of this graph: the node's lane, the extent and the symbol."""
    for node in (*input_nodes(graph.graph), *body(graph.graph)):
        lane = _lane(node)
        for leaf in tree_leaves(meta.value(node)):
            for extent in leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,):
                yield from ((lane, extent, symbol) for symbol in symbols(extent))


def _names(graph: StageGraph) -> set[str]:
    """Every name by which a size of this graph can be given."""
    return {name for lane, _, symbol in _symbols(graph) for name in (str(symbol), f"{lane}{symbol}")}
