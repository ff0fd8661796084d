"""Take out of a freshly traced joint graph what is only there because of tracing.

needs       the joint graph module of a capture; the nodes that stand for stage outputs.
does        removes detaches, copies at the stage's boundary and waits on waits; makes views tolerant of other strides.
guarantees  every value is unchanged; edits in place, so only on a graph that nobody else holds.
"""

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.declared_ops import WAIT_TENSOR
from annopipe.graphs.ops import launch_of, traits

__all__ = ["BOUNDARY_KEY", "clean_joint_graph"]

BOUNDARY_KEY = "annopipe_boundary"
_aten = torch.ops.aten
_ALIASES = frozenset({_aten.detach.default, _aten.alias.default})


def clean_joint_graph(graph: fx.Graph) -> None:
    """Remove tracing artefacts from ``graph``, in place."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _is_artefact(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
        elif node.target is _aten.view.default:
            # A kernel may return other strides than its fake (dropout's backward, transposed): view would fail.
            node.target = _aten.reshape.default


def _is_artefact(node: fx.Node) -> bool:
    if node.target in _ALIASES:
        return True  # graphs run without autograd, so a detach is the tensor itself
    if node.target is _aten.view.default and BOUNDARY_KEY in meta.custom_tags(node):
        return node.all_input_nodes[0].op == "placeholder"  # where a DTensor is made of its local tensor
    if node.target is _aten.clone.default and BOUNDARY_KEY in meta.custom_tags(node):
        return not meta.is_traced_in_backward(node)  # without gradients, nodes have no side
    waits_for_nothing = traits(node).pairing == WAIT_TENSOR and traits(node).wait and launch_of(node) is None
    return waits_for_nothing and traits(node.all_input_nodes[0]).wait
