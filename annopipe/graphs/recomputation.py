"""Which values of a forward a backward computes again, and when.

needs       a joint graph with the marks of checkpoints (``annopipe.graphs.checkpointing``) and of what the caller asks
            for (``annopipe.graphs.recompute_choice``).
does        picks the operations to compute again; in the backward, puts each just before its first use.
guarantees  never computed again: what launches, waits, reads on the host, draws random numbers, sorts or has an effect,
            what its policy saves, sizes, and what leaves its group, as a layer's result does. All else of a group is
            not saved, as in eager.

    forward: x -> a -> b -> y        saved: x        backward: dy, x -> (a -> b) -> dx
"""

import itertools

from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.ops import has_effect, is_getitem, sorts, traits
from annopipe.graphs.stage_graph import StageGraph, body

__all__ = ["may_run_again", "put_recomputed_late", "recomputed"]


def recomputed(graph: fx.Graph, forward: set[fx.Node]) -> set[fx.Node]:
    """The nodes of ``forward`` that a backward computes again if it needs their values."""
    again: set[fx.Node] = set()
    for node in graph.nodes:
        if node in forward and meta.recompute_group(node) is not None and node.op == "call_function":
            made = node.all_input_nodes[0] if is_getitem(node) else None
            if made in again if made is not None else may_run_again(node):
                again.add(node)
    return {node for node in again if not _leaves_group(node, forward)}


def may_run_again(node: fx.Node) -> bool:
    """Whether an operation yields the same when it runs a second time, and does nothing else."""
    known = traits(node)
    once = known.launch or known.wait or known.host_read or sorts(node)
    return not (once or has_effect(node) or meta.makes_sizes(node) or meta.is_number(node))


def _leaves_group(node: fx.Node, forward: set[fx.Node]) -> bool:
    """Whether another part of the forward uses the value, so that eager would save it there."""
    group = meta.recompute_group(node)
    users = [user for user in node.users if user in forward and not meta.is_number(user)]
    return any(meta.group(user) != group for user in users)


def put_recomputed_late(backward: StageGraph) -> None:
    """Move what the backward computes again down to its first use, in place, so that it lives only then."""
    again = {n for n in body(backward.graph) if meta.is_traced_in_forward(n) and meta.recompute_group(n) is not None}
    if not again:
        return
    nodes = list(backward.graph.nodes)
    position = {node: index for index, node in enumerate(nodes)}
    placed: set[fx.Node] = set()
    order: list[fx.Node] = []
    for node in nodes:
        if node in again:
            continue
        pending, missing = [node], set[fx.Node]()
        while pending:
            for source in pending.pop().all_input_nodes:
                if source in again and source not in placed and source not in missing:
                    missing.add(source)
                    pending.append(source)
        order += [*sorted(missing, key=position.__getitem__), node]
        placed |= missing
    for before, after in itertools.pairwise(order):
        before.append(after)
