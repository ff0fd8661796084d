"""Split a joint graph into forward and backward.

needs       a joint stage graph: tangent inputs, gradient outputs, nodes tagged with the side they were traced on.
does        gives each node its side, then two calls of ``extract``; what crosses becomes saved and size ports.
guarantees  forward outputs and gradients are those of the joint graph; a saved value is never a launch, never a tuple,
            and not a view of a parameter, gathered or not, or of another saved value (the view is made again in the
            backward); a getitem stays with its producer and a wait with its launch; operations with effects stay
            although nothing uses their result; the backward needs no buffer that the forward updates. What a checkpoint
            covers is not saved but computed again in the backward, just before its use
            (``annopipe.graphs.recomputation``).

    joint: x, w, t -> y, dx, dw        forward: x, w -> y, saved         backward: saved, w, t -> dx, dw
"""

import collections
from collections.abc import Iterable

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.extraction import Endpoint, ancestors, extract, saved_port
from annopipe.graphs.ops import has_effect, is_getitem, launch_of, view_chain
from annopipe.graphs.recomputation import put_recomputed_late, recomputed
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes, output_nodes

__all__ = ["partition"]

_GRADIENTS = frozenset({"param_grad", "input_grad", "unreduced"})
_BOUND = frozenset({"param", "buffer", "unsharded"})


def partition(joint: StageGraph) -> tuple[StageGraph, StageGraph | None]:
    """The forward and the backward graph; no backward when the joint graph has no gradient output.

    The joint graph is edited where its backward needs a buffer that its forward updates.
    """
    ports = dict(zip(joint.outputs, output_nodes(joint.graph), strict=True))
    gradients = [port for port in ports if port.role in _GRADIENTS]
    results = [port.name for port in ports if port.role not in _GRADIENTS]
    effects = [node for node in body(joint.graph) if has_effect(node)]
    if not gradients:
        return extract(joint, results, keep=effects), None
    forward = _forward_side(joint, [node for port, node in ports.items() if port.role not in _GRADIENTS])
    late = [node for node in effects if node not in forward]
    roots = [*(ports[p] for p in gradients), *late]
    kept = forward - recomputed(joint.graph, forward)
    _keep_old_buffers(joint, kept, roots)
    saved = _saved(joint, kept, roots)
    forward_graph = extract(joint, [*results, *saved], keep=[node for node in effects if node in forward])
    backward_graph = extract(joint, [p.name for p in gradients], inputs=saved, keep=late)
    put_recomputed_late(backward_graph)
    return forward_graph, backward_graph


def _forward_side(joint: StageGraph, results: list[fx.Node]) -> set[fx.Node]:
    """Placeholders but tangents, what the results need, what was traced in forward, and what must stay with these."""
    tangents = {n for p, n in zip(joint.inputs, input_nodes(joint.graph), strict=True) if p.role == "tangent"}
    forward = ancestors(results)
    after_tangents = set(tangents)
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            if node not in tangents:
                forward.add(node)
            continue
        if node.op == "output":
            continue
        if any(argument in after_tangents for argument in node.all_input_nodes):
            after_tangents.add(node)
        elif meta.is_traced_in_forward(node) or _stays_with_input(node, forward) or node.op == "get_attr":
            forward.add(node)
    return forward


def _stays_with_input(node: fx.Node, forward: set[fx.Node]) -> bool:
    inputs = node.all_input_nodes
    if not inputs or any(source not in forward for source in inputs):
        return False
    reads_size = isinstance(meta.value(node), torch.SymInt) and isinstance(meta.value(inputs[0]), torch.Tensor)
    return is_getitem(node) or launch_of(node) is not None or reads_size


def _saved(joint: StageGraph, kept: set[fx.Node], roots: list[fx.Node]) -> list[Endpoint]:
    """What crosses: the forward values that the backward needs, without views of parameters and of each other."""
    names = {n: p for p, n in zip(joint.inputs, input_nodes(joint.graph), strict=True)}
    bound = {n for n, p in names.items() if p.role in _BOUND}
    bound |= {n for n in joint.graph.nodes if n.op == "get_attr"}
    chains = {node: view_chain(node) for node in _crossing(joint, kept, roots)}
    shared = collections.Counter(root for root, _ in chains.values())
    saved: set[fx.Node] = set()
    for node, (root, others) in chains.items():
        made_again = root is not node and (root in bound or shared[root] > 1)
        saved |= {root, *others} if made_again else {node}
    ordered = [node for node in joint.graph.nodes if node in saved and node not in bound]
    return [(saved_port(node, names[node].name if node in names else node.name), node) for node in ordered]


def _crossing(joint: StageGraph, kept: set[fx.Node], roots: Iterable[fx.Node]) -> list[fx.Node]:
    """The values of nodes in ``kept`` that backward nodes use, in program order."""
    needed = ancestors(roots, stop=kept)
    return [node for node in joint.graph.nodes if node in kept and node in needed]


def _keep_old_buffers(joint: StageGraph, kept: set[fx.Node], roots: list[fx.Node]) -> None:
    """Where the backward needs a buffer that the forward updates, work on a copy.

    The update is written to the buffer's storage before the backward runs.
    """
    updated = {port.source for port in joint.outputs if port.role == "buffer_update"}
    needed = {view_chain(node)[0] for node in _crossing(joint, kept, roots)}
    for port, node in zip(joint.inputs, input_nodes(joint.graph), strict=True):
        if port.role == "buffer" and port.source in updated and node in needed:
            users = list(node.users)
            with joint.graph.inserting_before(body(joint.graph)[0]):
                copy = joint.graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = dict(node.meta)
            kept.add(copy)
            for user in users:
                user.replace_input_with(node, copy)
