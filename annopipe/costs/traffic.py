"""How many bytes each node reads from memory and writes to it.

A node reads every tensor it takes and writes every tensor it makes, once; views, and values that are no tensors, cost
nothing; an expanded tensor is read once; an operation that picks rows reads what it picks.

With ``fused``, as a compiler would run it: elementwise operations, reductions and data movement that are connected
within one region and phase are one kernel. A value that only this kernel uses is neither written nor read, what several
of its operations read is read once, and the first of them stands for the kernel's launch.

    x -> mul -> add -> mm       fused: mul reads x, add writes;  not fused: mul writes, and add reads it
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import fx

from annopipe.costs.sizes import Sizes
from annopipe.graphs import meta
from annopipe.graphs.ops import is_getitem, is_operator, traits, view_chain
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.pytrees import tree_leaves

__all__ = ["Traffic", "traffic"]

_ROWS_PICKED = frozenset(f"aten::{name}" for name in ("embedding", "gather", "index", "index_select"))
_NOTHING_READ = frozenset(
    f"aten::{name}"
    for name in (
        *("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"),
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros"),
    )
)
_NOTHING_WRITTEN = frozenset(f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty")) | {
    "aten::new_empty_strided"
}
# Beside what PyTorch tags as pointwise.
_FUSIBLE = frozenset(
    f"aten::{name}"
    for name in (
        *("_to_copy", "clone", "cat", "stack", "constant_pad_nd", "index_select", "gather", "slice_backward"),
        *("select_backward", "arange", "full", "full_like", "new_zeros", "ones", "ones_like", "scalar_tensor", "zeros"),
        *("zeros_like", "sum", "mean", "amax", "amin", "var", "var_mean", "_softmax", "_softmax_backward_data"),
        *("_log_softmax", "_log_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward"),
        *("_fused_rms_norm", "_fused_rms_norm_backward", "silu_backward"),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one node, and whether it starts a kernel of its own."""

    read_bytes: int = 0
    written_bytes: int = 0
    is_kernel: bool = False


def traffic(graph: StageGraph, sizes: Sizes, *, fused: bool) -> dict[fx.Node, Traffic]:
    """The bytes of every node of a graph whose nodes have their places.

    Raises:
        CostError: a size is missing.
    """
    nodes = body(graph.graph)
    kernels = _kernels(nodes) if fused else {}
    inner = _inner_values(nodes, kernels)
    read: set[tuple[fx.Node | None, fx.Node]] = set()
    started: set[fx.Node] = set()
    found = {}
    for node in nodes:
        if not _moves_data(node):
            found[node] = Traffic()
            continue
        kernel = kernels.get(node)
        sources = []
        for argument in dict.fromkeys(node.all_input_nodes):
            base = view_chain(argument)[0]
            again = kernel is not None and (kernels.get(base) is kernel or (kernel, base) in read)
            if not again:
                sources.append(argument)
                read.add((kernel, base))
        writes = 0 if node in inner else _size_bytes(node, node, sizes)
        found[node] = Traffic(_read(node, sources, sizes), writes, kernel not in started)
        if kernel is not None:
            started.add(kernel)
    return found


def _moves_data(node: fx.Node) -> bool:
    known = traits(node)
    symbolic = not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(meta.value(node)))
    nothing = is_operator(node.target) and _name(node) in _NOTHING_WRITTEN
    return not (known.view or known.wait or known.check or symbolic or nothing or is_getitem(node)) and (
        node.op == "call_function"
    )


def _name(node: fx.Node) -> str:
    return str(node.target.name()).partition(".")[0] if is_operator(node.target) else ""  # type: ignore[union-attr]


def _read(node: fx.Node, sources: Sequence[fx.Node], sizes: Sizes) -> int:
    name = _name(node)
    if name in _NOTHING_READ:
        return 0
    total = 0
    for source in sources:
        size = _size_bytes(source, node, sizes)
        picks = name in _ROWS_PICKED and source is node.args[0]
        total += min(size, _size_bytes(node, node, sizes)) if picks else size
    return total


def _size_bytes(value: fx.Node, at: fx.Node, sizes: Sizes) -> int:
    tensors = [leaf for leaf in tree_leaves(meta.value(value)) if isinstance(leaf, torch.Tensor)]
    return sum(sizes.elements(tensor, at) * tensor.element_size() for tensor in tensors)


def _kernels(nodes: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For each node that a compiler fuses, the first node of its kernel."""
    first: dict[fx.Node, fx.Node] = {}
    position = {node: number for number, node in enumerate(nodes)}

    def root(node: fx.Node) -> fx.Node:
        while first[node] is not node:
            node = first[node]
        return node

    for node in nodes:
        if not _is_fusible(node):
            continue
        first[node] = node
        for argument in node.all_input_nodes:
            base = view_chain(argument)[0]
            if base in first and _place(base) == _place(node):
                ends = sorted((root(base), root(node)), key=position.__getitem__)
                first[ends[1]] = ends[0]
    return {node: root(node) for node in first}


def _is_fusible(node: fx.Node) -> bool:
    if not is_operator(node.target) or not _moves_data(node):
        return False
    known = traits(node)
    effects = known.launch or known.host_read or known.random or known.fence or known.writes
    pointwise = torch.Tag.pointwise in node.target.tags  # type: ignore[union-attr]
    return not effects and (pointwise or _name(node) in _FUSIBLE)


def _place(node: fx.Node) -> tuple[str, str, str]:
    at = meta.placed(node)
    return at.region, at.lane, at.phase


def _inner_values(nodes: Sequence[fx.Node], kernels: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """Nodes whose value is used by their own kernel only."""
    used_elsewhere = set()
    for node in nodes:
        for user in node.users:
            if user.op != "output" and (traits(user).view or is_getitem(user)):
                continue  # its own users count, below
            if user.op == "output" or kernels.get(user) is not kernels.get(view_chain(node)[0]):
                used_elsewhere.add(view_chain(node)[0])
    return {node for node in kernels if node not in used_elsewhere}
