"""Floating-point operations of a node: PyTorch's own formulas, and ours for what they leave out.

The formulas are those of ``torch.utils.flop_counter``, where ``annopipe.models`` registers the grouped products, too.
Causal attention counts half: PyTorch counts the whole square of scores, fused kernels skip the masked half.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from annopipe.costs.sizes import Sizes
from annopipe.graphs import meta
from annopipe.graphs.operators import schema_arguments
from annopipe.graphs.ops import is_operator
from annopipe.pytrees import tree_map_only

__all__ = ["Flops", "flops"]

Shape = Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Flops:
    """The operations of one node.

    dtype: the operands' type.  is_linear: a product that mixed precision may make in a narrower type.
    """

    count: float
    dtype: torch.dtype
    is_attention: bool
    is_linear: bool


def flops(node: fx.Node, sizes: Sizes) -> Flops | None:
    """The operations of a node, None where it has no matrix product or convolution.

    Raises:
        CostError: a size is missing.
    """
    packet = getattr(node.target, "overloadpacket", node.target)
    formula = _OWN.get(packet) or flop_registry.get(packet)
    operands = [
        v for v in map(meta.value, node.all_input_nodes) if isinstance(v, torch.Tensor) and v.is_floating_point()
    ]
    if formula is None or not operands:
        return None

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(sizes.shape(tensor, node), dtype=tensor.dtype, device="meta")

    def concrete(value: Any) -> Any:
        value = tree_map_only(torch.Tensor, stand_in, value)
        return tree_map_only(torch.SymInt, lambda size: sizes.number(size, node), value)

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), meta.value)
    attention = "attention" in str(packet)
    given = concrete(args)
    if "scaled_dot_product" in str(packet):
        given = _all_heads(given)
    count = float(formula(*given, **concrete(kwargs), out_val=concrete(meta.value(node))))
    return Flops(
        count=count / 2 if attention and _argument(node, "is_causal") is True else count,
        dtype=operands[0].dtype,
        is_attention=attention,
        is_linear=str(packet) in _LINEAR,
    )


def _argument(node: fx.Node, name: str) -> Any:
    if is_operator(node.target):
        for position, argument in enumerate(schema_arguments(node.target)):
            if argument.name == name:
                given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
                return argument.default_value if given is None else given
    return None


def _shapes(formula: Callable[..., int], count: int) -> Callable[..., int]:
    """A formula of the first ``count`` arguments' shapes, called as the registry's are."""
    return lambda *args, **_: formula(*(tuple(arg.shape) for arg in args[:count]))


def _matrix_vector(matrix: Shape, _vector: Shape) -> int:
    return 2 * matrix[0] * matrix[1]


def _grouped(rows: Shape, weight: Shape) -> int:
    """[rows, in] by [groups, in, out]; or [in, rows] by [rows, out], a weight gradient per group."""
    return 2 * rows[0] * rows[1] * weight[-1]


def _all_heads(args: Sequence[Any]) -> list[Any]:
    """Attention's arguments where keys and values have as many heads as queries: PyTorch 2.11 counts no groups."""
    headed = {place for place, arg in enumerate(args) if isinstance(arg, torch.Tensor) and arg.dim() == _HEADED}
    heads = max((args[place].shape[1] for place in headed), default=0)
    return [
        arg.new_empty([arg.shape[0], heads, *arg.shape[2:]]) if place in headed else arg
        for place, arg in enumerate(args)
    ]


_HEADED = 4  # dimensions: batch, heads, tokens, width of a head
_aten = torch.ops.aten
_OWN: dict[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
    _aten._grouped_mm: _shapes(_grouped, 2),
    _aten.mv: _shapes(_matrix_vector, 2),
}
# Products of activations or gradients with weights or each other, which mixed precision makes in 8 bits.
_LINEAR = frozenset(
    {"aten.mm", "aten.addmm", "aten._grouped_mm", "annopipe.grouped_mm", "annopipe.grouped_mm_weight_grad"}
)
