"""``bucket``: few large collectives instead of many small ones, where parameters are gathered and gradients reduced.

needs       an unshard or a reduce_grad graph.
does        has launches of one kind, on one group, of one type, run as one on a concatenation of their inputs; then
            sorts the graph, so that what needs a result stands behind it.
guarantees  the same values: gathering only moves elements, and gloo adds up a scattered element in an order that does
            not depend on its place in the message (with all-reduce it does, from three ranks on: these stay apart
            unless asked for). No bucket is larger than asked for, save one that holds a single launch. Every rank
            makes the same buckets.

    a -> gather -> A, b -> gather -> B        cat(a, b) -> gather -> (A, B)
"""

import heapq
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.ops import group_name, launch_of, traits
from annopipe.graphs.process_groups import find_group
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph, body

__all__ = ["bucket"]

_aten, _c10d = torch.ops.aten, torch.ops._c10d_functional
_GATHER, _SCATTER, _REDUCE = (
    _c10d.all_gather_into_tensor.default,
    _c10d.reduce_scatter_tensor.default,
    _c10d.all_reduce.default,
)
_ROLES = frozenset({"param", "unreduced"})


def bucket(graph: StageGraph, *, size_bytes: int = 25 * 2**20, all_reduces: bool = False) -> StageGraph:
    """Fuse the collectives of an unshard or reduce_grad graph; ``launch_count`` of both graphs tells how many are left.

    Args:
        graph: stays as it is.
        size_bytes: how large the inputs of one collective may be together.
        all_reduces: fuse all-reduces over more than two ranks, too, which may change the last bits of sums.

    Raises:
        GraphError: another kind of graph, or a size that is not positive.

    >>> import torch.distributed as dist, annopipe as ap
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> class Gathered(torch.nn.Linear):
    ...     def gathered(self, shard):
    ...         ops = torch.ops._c10d_functional
    ...         return ops.wait_tensor(ops.all_gather_into_tensor(shard.detach(), 1, dist.group.WORLD.group_name))
    ...     def forward(self, x):
    ...         return x @ self.gathered(self.weight).t() + self.gathered(self.bias)
    >>> unshard = ap.trace(Gathered(3, 2), (torch.ones(1, 3).requires_grad_(),)).unshard
    >>> unshard.launch_count, bucket(unshard).launch_count
    (2, 1)
    >>> dist.destroy_process_group()
    """
    if size_bytes <= 0:
        raise GraphError(f"bucket: size_bytes={size_bytes}: give a positive number")
    if others := sorted({port.role for port in graph.inputs} - _ROLES):
        raise GraphError(
            f"bucket takes an unshard or reduce_grad graph, and this one has inputs of role {', '.join(others)}: pass "
            "graphs.unshard or graphs.reduce_grad"
        )
    made = graph.copy()
    for members in _buckets(made, size_bytes, all_reduces=all_reduces):
        _fuse(made.graph, members)
    _sort(made.graph)
    made.graph.eliminate_dead_code()
    made.graph.lint()
    place(made)
    return made


def _buckets(graph: StageGraph, size_bytes: int, *, all_reduces: bool) -> list[list[fx.Node]]:
    """Which launches become one: alike, and none waits for another."""
    depth: dict[fx.Node, int] = {}
    open_: dict[tuple[Any, ...], list[fx.Node]] = {}
    sizes: dict[tuple[Any, ...], int] = {}
    found: list[list[fx.Node]] = []
    for node in body(graph.graph):
        depth[node] = max((depth.get(source, 0) for source in node.all_input_nodes), default=0)
        if not traits(node).launch:
            continue
        depth[node] += 1
        size = meta.size_bytes(node.all_input_nodes[0])
        if node.target not in (_GATHER, _SCATTER, _REDUCE) or size is None:
            continue
        if node.target is _REDUCE and not all_reduces and _ranks(node) > 2:
            continue
        key = (node.target, group_name(node), _rest(node), _tensor(node.all_input_nodes[0]).dtype, depth[node])
        if key not in open_ or sizes[key] + size > size_bytes:
            found.append([])
            open_[key], sizes[key] = found[-1], 0
        open_[key].append(node)
        sizes[key] += size
    return [members for members in found if len(members) > 1]


def _ranks(launch: fx.Node) -> int:
    """How many ranks its group has; many where this process does not know it."""
    group = find_group(group_name(launch))
    return sys.maxsize if group is None else group.size()


def _rest(node: fx.Node) -> tuple[Any, ...]:
    """Number of ranks and kind of reduction."""
    return tuple(item for item in node.args[1:] if isinstance(item, (int, str)))


def _fuse(graph: fx.Graph, members: Sequence[fx.Node]) -> None:
    """One launch in the place of the last of several."""
    last = members[-1]
    inputs = [node.all_input_nodes[0] for node in members]
    ranks = int(last.args[2 if last.target is _SCATTER else 1]) if last.target is not _REDUCE else 1  # type: ignore[arg-type]
    with graph.inserting_before(last):
        build = _Builder(graph, last)
        rows = ranks if last.target is _SCATTER else 1
        flat = [build(_aten.reshape.default, node, [rows, -1]) for node in inputs]
        joined = build(_aten.reshape.default, build(_aten.cat.default, flat, 1), [-1])
        launch = build(last.target, joined, *last.args[1:])
        wait = build(_c10d.wait_tensor.default, launch)
        table = build(_aten.reshape.default, wait, [ranks if last.target is _GATHER else 1, -1])
        at = 0
        for node in members:
            shape = list(_tensor(node).shape)
            width = math.prod(shape) // (ranks if last.target is _GATHER else 1)
            part = build(_aten.slice.Tensor, table, 1, at, at + width)
            result = build(_aten.reshape.default, part, shape)
            if last.target is not _GATHER or ranks == 1:
                # Memory of its own, as every result has.
                result = build(_aten.clone.default, result)
            at += width
            for user in [user for user in node.users if launch_of(user) is node]:
                user.replace_all_uses_with(result)
                graph.erase_node(user)
    for node in members:
        if not node.users:
            graph.erase_node(node)


class _Builder:
    """Adds nodes with the tags of another one, and their fake values."""

    def __init__(self, graph: fx.Graph, like: fx.Node) -> None:
        self._graph, self._like = graph, like

    def __call__(self, target: Any, *args: Any) -> fx.Node:
        node = self._graph.call_function(target, args)
        values = fx.node.map_arg(args, meta.value)
        meta.tag_like(node, self._like, target(*values))
        return node


def _sort(graph: fx.Graph) -> None:
    """Put every node behind its inputs, otherwise as they stand."""
    nodes = body(graph)
    position = {node: index for index, node in enumerate(nodes)}
    missing = {node: sum(source in position for source in node.all_input_nodes) for node in nodes}
    ready = [position[node] for node in nodes if not missing[node]]
    heapq.heapify(ready)
    output = graph.output_node()
    while ready:
        node = nodes[heapq.heappop(ready)]
        output.prepend(node)
        for user in _waiting(node.users, position):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, position[user])


def _waiting(users: Iterable[fx.Node], position: dict[fx.Node, int]) -> list[fx.Node]:
    return [user for user in users if user in position]


def _tensor(node: fx.Node) -> torch.Tensor:
    value = meta.value(node)
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"{node.name} has no tensor; this is a mistake in annopipe")
    return value
