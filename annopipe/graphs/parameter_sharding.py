"""Take the gathering of parameters and the reduction of their gradients out of a joint graph, once per step each.

needs       a joint stage graph, and which parameters are DTensors.
does        merges gathers of the same thing; then three calls of ``extract``: unshard has what depends on parameters
            alone and gathers, casts or copies them; reduce_grad has the collectives behind which only gradients of
            parameters come, with the casts and copies around them; the joint graph that remains has neither.
guarantees  unshard, the rest and reduce_grad in turn compute what the joint graph computes, bit by bit. reduce_grad is
            linear, so that it may run once on the sum over microbatches. What crosses is counted once per storage:
            views of a gathered parameter are made again where they are used. Collectives keep their order.

    joint: w -> gather -> W; W, x, t -> y, dW -> scatter -> dw
    unshard: w -> gather -> W         rest: W, x, t -> y, dW         reduce_grad: dW -> scatter -> dw
"""

from collections.abc import Collection, Iterable

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.extraction import Endpoint, ancestors, descendants, extract
from annopipe.graphs.linear_ops import is_linear, moves_only, only_looks
from annopipe.graphs.ops import has_effect, is_getitem, launch_of, traits, view_chain
from annopipe.graphs.ports import Port, Role
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes, output_nodes

__all__ = ["separate", "sum_dtypes"]


def separate(
    joint: StageGraph, distributed: Collection[str]
) -> tuple[StageGraph | None, StageGraph, StageGraph | None]:
    """The unshard graph, what remains, and the reduce_grad graph; None where there is nothing to do.

    Args:
        joint: edited where it gathers one thing twice.
        distributed: names of the parameters that are DTensors.
    """
    fixed = _fixed(joint)
    _merge_gathers(joint, fixed)
    gathered = _gathered(joint, fixed, distributed)
    reduced = _reduced(joint)
    results = dict(zip(joint.outputs, output_nodes(joint.graph), strict=True))
    taken = _endpoints("unsharded", gathered, _sources(joint, gathered))
    behind = [port for port, node in results.items() if node in reduced]
    crossing = [node for node in joint.graph.nodes if node not in reduced and any(u in reduced for u in node.users)]
    given = _endpoints("unreduced", crossing, _targets(crossing, reduced, {results[p]: p.source for p in behind}))
    if not taken and not given:
        return None, joint, None
    effects = [node for node in body(joint.graph) if has_effect(node)]
    kept = [port.name for port in results if port not in behind]
    rest = extract(joint, [*kept, *given], inputs=taken, keep=effects)
    unshard = extract(joint, taken) if taken else None
    return unshard, rest, extract(joint, [port.name for port in behind], inputs=given) if given else None


def sum_dtypes(reduce_grad: StageGraph) -> dict[str, torch.dtype]:
    """By port of an unreduced gradient: the type that reduce_grad casts it to, so that a sum in it may come, too."""
    found: dict[str, torch.dtype] = {}
    for port, taken in zip(reduce_grad.inputs, input_nodes(reduce_grad.graph), strict=True):
        node = taken
        while len(node.users) == 1 and moves_only(next(iter(node.users))):
            node = next(iter(node.users))
            value = meta.value(node)
            if isinstance(value, torch.Tensor) and value.dtype != port.dtype:
                found[port.name] = value.dtype
                break
    return found


def _fixed(joint: StageGraph) -> set[fx.Node]:
    """The nodes whose values depend on parameters and constants alone."""
    named = zip(joint.inputs, input_nodes(joint.graph), strict=True)
    fixed = {node for port, node in named if port.role == "param"}
    for node in joint.graph.nodes:
        known = traits(node)
        if node.op == "get_attr":
            fixed.add(node)
        elif node.op == "call_function" and not (has_effect(node) or known.host_read or meta.makes_sizes(node)):
            inputs = node.all_input_nodes
            if inputs and all(source in fixed for source in inputs):
                fixed.add(node)
    return fixed


def _merge_gathers(joint: StageGraph, fixed: set[fx.Node]) -> None:
    """Have what gathers, moves or casts the same parameter in the same way be one node, in place."""
    first: dict[str, fx.Node] = {}
    for node in body(joint.graph):
        if node not in fixed or not (traits(node).launch or launch_of(node) is not None or moves_only(node)):
            continue
        same = first.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
        if same is not node:
            node.replace_all_uses_with(same)
            joint.graph.erase_node(node)
            fixed.discard(node)


def _gathered(joint: StageGraph, fixed: set[fx.Node], distributed: Collection[str]) -> list[fx.Node]:
    """The values that the unshard graph makes for the others, in program order; views are made again there."""
    waits = [node for node in fixed if launch_of(node) is not None]
    inside = {node for node in ancestors(waits) if node.op == "call_function"}
    named = zip(joint.inputs, input_nodes(joint.graph), strict=True)
    sharded = {node for port, node in named if port.role == "param" and port.source in distributed}
    for node in body(joint.graph):
        if node in fixed and moves_only(node) and all(n in inside or n in sharded for n in node.all_input_nodes):
            inside.add(node)
    used = [node for node in inside if any(user not in inside for user in node.users)]
    roots = {view_chain(node)[0] for node in used}
    return [node for node in joint.graph.nodes if node in roots and node in inside]


def _reduced(joint: StageGraph) -> set[fx.Node]:
    """The collectives behind which only gradients of parameters come, and the linear operations around them."""
    results = dict(zip(joint.outputs, output_nodes(joint.graph), strict=True))
    gradients = {node for port, node in results.items() if port.role == "param_grad"}
    others = {node for port, node in results.items() if port.role != "param_grad"}
    output = joint.graph.output_node()
    tail: set[fx.Node] = set()
    for node in reversed(body(joint.graph)):
        users = [user for user in node.users if user is not output]
        ends = node in gradients or bool(users)
        if ends and node not in others and is_linear(node) and all(user in tail for user in users):
            tail.add(node)
    launches = [node for node in tail if traits(node).launch]
    reduced = descendants(launches) - {output}
    pending = list(launches)
    while pending:
        for source in pending.pop().all_input_nodes:
            if source in tail and source not in reduced and moves_only(source):
                reduced.add(source)
                pending.append(source)
    for node in joint.graph.nodes:  # what crosses is the whole gradient, as the backward makes it
        looks = only_looks(node) or is_getitem(node)
        if node in reduced and looks and not any(n in reduced for n in node.all_input_nodes):
            reduced.discard(node)
    return reduced


def _sources(joint: StageGraph, gathered: Iterable[fx.Node]) -> dict[fx.Node, set[str]]:
    """The parameters that each value is made of."""
    sources = {n: p.source for p, n in zip(joint.inputs, input_nodes(joint.graph), strict=True) if p.role == "param"}
    return {node: {sources[n] for n in ancestors([node]) if n in sources} for node in gathered}


def _targets(crossing: Iterable[fx.Node], reduced: set[fx.Node], ends: dict[fx.Node, str]) -> dict[fx.Node, set[str]]:
    """The parameters whose gradients each value is a part of."""
    return {
        node: {ends[n] for n in descendants(u for u in node.users if u in reduced) if n in ends} for node in crossing
    }


def _endpoints(role: Role, nodes: Iterable[fx.Node], parameters: dict[fx.Node, set[str]]) -> list[Endpoint]:
    """A port for each node, named after its parameter; further ones, and mixtures, have the name of the node, too."""
    ports: list[Endpoint] = []
    seen: set[str] = set()
    for node in nodes:
        source = " and ".join(sorted(parameters[node]))
        label = source if source not in seen else f"{source}.{node.name}"
        seen.add(source)
        ports.append((Port.of(role, source, meta.value(node), label=label), node))
    return ports
