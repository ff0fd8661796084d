"""What is not compiled, and why."""

from collections.abc import Container

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.ops import is_operator, traits
from annopipe.graphs.views import is_view

__all__ = ["kind_refusal", "lookup_refusal", "refusal"]

_NAMESPACES = frozenset({"aten", "prims"})
# Operations that read or write at given places, by the beginning of their names.
_LOOKUPS = ("embedding", "gather", "index", "_unsafe_index", "nll_loss", "scatter", "take")
_COPIES = ("_to_copy", "clone")
_DEVICES = frozenset({"cpu", "cuda", "xpu", "mps"})


def refusal(node: fx.Node) -> str:
    """Why a node of computation runs eagerly; "" when it may be compiled.

    >>> graph = fx.Graph()
    >>> refusal(graph.call_function(sum, ((1, 2),)))
    'sum is no operator'
    """
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"{target.name()} is an operator on functions"
    if traits(node).check:
        return "a check"
    if not is_operator(target) and getattr(target, "__name__", "") != "getitem":
        return f"{getattr(target, '__name__', target)} is no operator"
    if is_operator(target) and target.namespace not in _NAMESPACES:  # type: ignore[union-attr]
        return f"{target} is a custom operator"
    found = meta.value(node)
    for value in found if isinstance(found, (list, tuple)) else [found]:
        if value is not None and (why := kind_refusal(value)):
            return f"a result is {why}"
    return "" if found is not None else "nothing is known of its result"


def lookup_refusal(node: fx.Node, given: Container[fx.Node]) -> str:
    """Why a node that looks up at places which a caller gives runs eagerly; "" for any other node.

    A token or label out of range is an IndexError in eager PyTorch. Where Inductor's loop runs in several threads, it
    would be the end of the process.
    """
    if not getattr(node.target, "__name__", "").startswith(_LOOKUPS):
        return ""
    for source in node.all_input_nodes:
        while is_view(source) or getattr(source.target, "__name__", "").startswith(_COPIES):
            source = source.all_input_nodes[0]  # noqa: PLW2901
        value = meta.value(source)
        if source in given and isinstance(value, torch.Tensor) and not value.is_floating_point():
            return "a lookup at places that a caller gives, which PyTorch checks"
    return ""


def kind_refusal(value: object) -> str:
    """What a value is that no compiled stretch takes or returns; "" for an ordinary tensor.

    >>> kind_refusal(torch.ones(2, dtype=torch.complex64)), kind_refusal(torch.eye(2).to_sparse())
    ('complex64', 'sparse_coo')
    """
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    if value.layout is not torch.strided:
        return str(value.layout).removeprefix("torch.")
    if value.is_complex() or value.is_quantized:
        return str(value.dtype).removeprefix("torch.")
    return "" if value.device.type in _DEVICES else f"on {value.device.type}"
