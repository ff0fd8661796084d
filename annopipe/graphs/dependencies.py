"""Which node has to come before which: everything a legal order of a graph must keep.

Data         a node comes after the nodes whose values it uses.
Mutation     on each storage (views share their base's), reads and writes keep their program order; a launch reads
             its input until its wait, and a wait counts as a write, so that nobody reads a buffer that is being filled.
Random       operations that draw random numbers keep their program order: the generator is one sequence.
Fence        nothing moves across an operation that is not understood (``annopipe.graphs.ops``), nor across a write to
             an input or a constant, nor across a declared wait whose launch is not in the graph.

Where storages cannot be told apart, they count as one: two tensors that one operation writes, what an operation that
is not understood takes and returns, an operation that may or may not return its argument, and all inputs.
"""

from collections.abc import Sequence

from torch import fx

from annopipe.graphs.declared_ops import WAIT_TENSOR
from annopipe.graphs.ops import is_getitem, launch_of, sharing_arguments, traits, written_arguments

__all__ = ["in_written_storage", "predecessors"]


def predecessors(nodes: Sequence[fx.Node]) -> list[list[int]]:
    """For each node of ``nodes``, given in program order, the positions of the nodes that must come before it.

    Transitively implied predecessors may be left out.
    """
    position = {node: index for index, node in enumerate(nodes)}
    before = [[position[n] for n in node.all_input_nodes if n in position] for node in nodes]
    fences = {index for index, node in enumerate(nodes) if _is_fence(node)}
    contested = [n for node in nodes for n in written_arguments(node)] + [n for n in nodes if _read_unfinished(n)]
    if contested:
        storages = _Storages(nodes)
        fences |= {
            index
            for index, node in enumerate(nodes)
            if any(storages.hold_an_input(written) for written in _written_until_now(node))
        }
        _keep_storages_in_order(nodes, before, storages, {storages.of(node) for node in contested})
    last_random = last_fence = -1
    for index, node in enumerate(nodes):
        if traits(node).random:
            if last_random >= 0:
                before[index].append(last_random)
            last_random = index
        if index in fences:
            before[index] += range(max(last_fence, 0), index)
            last_fence = index
        elif last_fence >= 0:
            before[index].append(last_fence)
    return [sorted(set(earlier)) for earlier in before]


def in_written_storage(nodes: Sequence[fx.Node]) -> frozenset[fx.Node]:
    """Those of ``nodes``, given in program order, whose memory one of them writes to."""
    written = [n for node in nodes for n in written_arguments(node)]
    if not written:
        return frozenset()
    storages = _Storages(nodes)
    held = {storages.of(node) for node in written}
    return frozenset(node for node in nodes if storages.of(node) in held)


def _keep_storages_in_order(
    nodes: Sequence[fx.Node], before: list[list[int]], storages: "_Storages", contested: set[fx.Node]
) -> None:
    """Order reads and writes of contested storages; the others need no more than data dependencies."""
    last_write: dict[fx.Node, int] = {}
    reads: dict[fx.Node, list[int]] = {}
    filling: dict[fx.Node, fx.Node] = {}  # storage to the in-place launch that fills it
    for index, node in enumerate(nodes):
        writes = {storages.of(n) for n in written_arguments(node)}
        touched = {storages.of(n) for n in (node, *node.all_input_nodes)}
        if traits(node).launch:
            filling.update(dict.fromkeys(writes, node))
        launch = launch_of(node)
        if (
            launch is None and traits(node).wait and node.all_input_nodes
        ):  # for the argument of an in-place launch: its wait, too
            launch = filling.get(storages.of(node.all_input_nodes[0]))
        if launch is not None:  # the transfer ends here: it read the launch's inputs and wrote its result until now
            touched |= {storages.of(n) for n in launch.all_input_nodes}
            writes.add(storages.of(launch))
        for storage in (touched | writes) & contested:
            if storage in last_write:
                before[index].append(last_write[storage])
            if storage in writes:
                before[index] += reads.pop(storage, [])
                last_write[storage] = index
            else:
                reads.setdefault(storage, []).append(index)


def _written_until_now(node: fx.Node) -> list[fx.Node]:
    """What a node writes to, and what the launch that it waits for writes to until then."""
    launch = launch_of(node)
    return [*written_arguments(node), *([] if launch is None else written_arguments(launch))]


def _read_unfinished(node: fx.Node) -> bool:
    """Whether a launch's result is used directly, so that only program order says that its wait came before."""
    users = [u for user in node.users for u in (user.users if is_getitem(user) else [user])]
    return traits(node).launch and any(launch_of(user) is None for user in users)


def _is_fence(node: fx.Node) -> bool:
    """Whether nothing moves across: also a declared wait for what no launch of the graph has started.

    PyTorch's own wait does nothing then.
    """
    known = traits(node)
    return known.fence or (known.wait and known.pairing != WAIT_TENSOR and launch_of(node) is None)


class _Storages:
    """Which values share memory, as sets that are joined: views with their base, writes with what they write to."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}
        inputs = []
        for node in nodes:
            if node.op == "get_attr":
                inputs.append(node)
            launch = launch_of(node)
            for other in [*sharing_arguments(node), *([launch] if launch is not None else [])]:
                self._parent[self.of(node)] = self.of(other)
                if other.op == "placeholder":
                    inputs.append(other)
        self._inputs = {self.of(node) for node in inputs}

    def of(self, node: fx.Node) -> fx.Node:
        """The node that stands for the storage of ``node``."""
        while (parent := self._parent.get(node, node)) is not node:
            node = parent
        return node

    def hold_an_input(self, node: fx.Node) -> bool:
        """Whether ``node`` may be the memory of an input or constant. Two of these may be one tensor."""
        return self.of(node) in self._inputs or node.op in ("placeholder", "get_attr")
