"""Operations with effects, which AOTAutograd chains by tokens, become plain nodes again.

needs       the joint graph of a capture.
does        calls the operations directly and takes the tokens out of inputs and outputs.
guarantees  the operations keep their program order, since they are fences (or checks, which order nothing).

    token, r = with_effects(token, op, x)        ->        r = op(x)
"""

from typing import Any

import torch
from torch import fx

from annopipe.errors import CaptureError
from annopipe.graphs.capture import JointGraph
from annopipe.graphs.ops import is_getitem, is_operator

__all__ = ["without_tokens"]

_with_effects = torch.ops.higher_order.with_effects


def without_tokens(joint: JointGraph) -> JointGraph:
    """The joint graph without tokens; its FX graph is edited in place.

    Raises:
        CaptureError: an operation whose result cannot be had without a token, such as ``torch.distributed``'s in-place
            collectives.
    """
    graph = joint.module.graph
    for node in graph.find_nodes(op="call_function", target=_with_effects):
        _call_directly(graph, node)
    output = graph.output_node()
    returned: Any = output.args[0]
    kept = [(node, pair) for node, pair in zip(returned, joint.outputs, strict=True) if pair[1].kind != "token"]
    output.args = (tuple(node for node, _ in kept),)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and _is_token(node):
            graph.erase_node(node)
    inputs = []
    for node, what in joint.inputs:
        if what.kind == "token":
            graph.erase_node(node)
        else:
            inputs.append((node, what))
    return JointGraph(joint.module, tuple(inputs), tuple(pair for _, pair in kept))


def _call_directly(graph: fx.Graph, node: fx.Node) -> None:
    operation: Any
    _, operation, *arguments = node.args
    if not is_operator(operation) or operation.namespace == "c10d":
        raise CaptureError(
            f"forward calls {operation}, whose effect cannot be part of a graph; for communication use "
            "torch.distributed._functional_collectives (all_reduce instead of dist.all_reduce)"
        )
    with graph.inserting_before(node):
        call = graph.call_function(operation, tuple(arguments), dict(node.kwargs))
    call.meta = dict(node.meta)
    values = node.meta.get("val")
    several = len(operation._schema.returns) > 1
    call.meta["val"] = None if values is None else values[1:] if several else values[1]
    for item in list(node.users):
        if not is_getitem(item) or item.args[1] == 0:
            continue
        index = int(item.args[1]) - 1  # type: ignore[arg-type]
        if several:
            item.args = (call, index)
        else:
            item.replace_all_uses_with(call)
            graph.erase_node(item)


def _is_token(node: fx.Node) -> bool:
    """A ``with_effects`` that has been replaced, or the token that it returned."""
    made = node.args[0] if is_getitem(node) else node
    return isinstance(made, fx.Node) and made.op == "call_function" and made.target is _with_effects
