"""Which node has to come before which: everything a legal order of a graph must keep.

Data         a node comes after the nodes whose values it uses.
Mutation     on each storage (views share their base's), reads and writes keep their program order; a launch reads its input until
             its wait, and a wait counts as a write, so that nobody reads a buffer that is still being filled.
Random       operations that draw random numbers keep their program order: the generator is one sequence.
Fence        nothing moves across an operation that is not understood (``annopipe.graphs.ops``), nor across a write to an input.
"""

from torch import fx

from annopipe.graphs.ops import is_getitem, launch_of, traits, view_chain, written_arguments

__all__ = ["predecessors"]


def predecessors(nodes: list[fx.Node]) -> list[list[int]]:
    """For each node of ``nodes``, given in program order, the positions of the nodes that must come before it.

    Transitively implied predecessors may be left out.
    """
    position = {node: index for index, node in enumerate(nodes)}
    before = [[position[n] for n in node.all_input_nodes if n in position] for node in nodes]
    _keep_storages_in_order(nodes, before)
    last_random = last_fence = -1
    for index, node in enumerate(nodes):
        known = traits(node)
        if known.random:
            if last_random >= 0:
                before[index].append(last_random)
            last_random = index
        if known.fence or _writes_an_input(node, known.writes):
            before[index] += range(max(last_fence, 0), index)
            last_fence = index
        elif last_fence >= 0:
            before[index].append(last_fence)
    return [sorted(set(earlier)) for earlier in before]


def _writes_an_input(node: fx.Node, writes: tuple[int | str, ...]) -> bool:
    """Two inputs may be one tensor (a parameter in two lanes), so a write to one orders everything."""
    return bool(writes) and any(view_chain(n)[0].op in ("placeholder", "get_attr") for n in written_arguments(node))


def _keep_storages_in_order(nodes: list[fx.Node], before: list[list[int]]) -> None:
    """Order reads and writes of storages that somebody writes to; the others need no more than data dependencies."""
    contested = [n for node in nodes for n in written_arguments(node)] + [n for n in nodes if _read_unfinished(n)]
    if not contested:
        return
    storages = _Storages(nodes)
    written = {storages.of(node) for node in contested}
    last_write: dict[fx.Node, int] = {}
    reads: dict[fx.Node, list[int]] = {}
    for index, node in enumerate(nodes):
        writes = {storages.of(n) for n in written_arguments(node)}
        touched = {storages.of(n) for n in (node, *node.all_input_nodes)} & written
        launch = launch_of(node)
        if launch is not None:  # the transfer ends here: it read the launch's inputs and wrote its result until now
            touched |= {storages.of(n) for n in launch.all_input_nodes} & written
            writes |= {storages.of(launch)} & written
        for storage in touched | writes:
            if storage in last_write:
                before[index].append(last_write[storage])
            if storage in writes:
                before[index] += reads.pop(storage, [])
                last_write[storage] = index
            else:
                reads.setdefault(storage, []).append(index)


def _read_unfinished(node: fx.Node) -> bool:
    """Whether a launch's result is used directly, so that only program order says that its wait came before."""
    users = [u for user in node.users for u in (user.users if is_getitem(user) else [user])]
    return traits(node).launch and any(launch_of(user) is None for user in users)


class _Storages:
    """Which values share memory: a union of views with their base, writes with what they write to, waits with launches."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            launch = launch_of(node)
            shares = [view_chain(node)[0], *written_arguments(node), *([launch] if launch is not None else [])]
            if is_getitem(node) and (traits(node.all_input_nodes[0]).writes or traits(node.all_input_nodes[0]).launch):
                shares.append(node.all_input_nodes[0])
            for other in shares:
                self._parent[self.of(node)] = self.of(other)

    def of(self, node: fx.Node) -> fx.Node:
        """The node that stands for the storage of ``node``."""
        while (parent := self._parent.get(node, node)) is not node:
            node = parent
        return node
