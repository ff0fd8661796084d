"""Refuse tensors of different dtypes in operations that take one.

Kernels refuse them when they run; tracing runs no kernel, and what stands for some kernels there does not look. So a
float64 batch for a float32 stage would be found out in the middle of a step, with messages under way.

needs       the nodes of a freshly traced graph, with their values.
guarantees  nothing is changed.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from annopipe.errors import CaptureError
from annopipe.graphs import meta
from annopipe.graphs.failures import user_frame

__all__ = ["refuse_mixed_dtypes"]

_aten = torch.ops.aten
# By operation, the positions of the arguments that have to have one dtype.
_ONE_DTYPE: Mapping[Any, tuple[int, ...]] = {
    _aten.mm.default: (0, 1),
    _aten.addmm.default: (0, 1, 2),
    _aten.addmv.default: (0, 1, 2),
    _aten.mv.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.baddbmm.default: (0, 1, 2),
    _aten.convolution.default: (0, 1, 2),
    _aten.index_add.default: (0, 3),
    _aten.index_put.default: (0, 2),
    _aten.binary_cross_entropy.default: (0, 1),
    _aten._cdist_forward.default: (0, 1),
    _aten.grid_sampler_2d.default: (0, 1),
    _aten.grid_sampler_3d.default: (0, 1),
}
# The same, where an input of half precision may have parameters of another.
_NORMS: Mapping[Any, tuple[int, ...]] = {
    _aten.native_layer_norm.default: (0, 2, 3),
    _aten.native_group_norm.default: (0, 1, 2),
    _aten.native_batch_norm.default: (0, 1, 2),
    _aten._native_batch_norm_legit_functional.default: (0, 1, 2),
    _aten._native_batch_norm_legit_no_training.default: (0, 1, 2),
    _aten._native_batch_norm_legit.no_stats: (0, 1, 2),
}
_HALF = (torch.bfloat16, torch.float16)


def refuse_mixed_dtypes(nodes: Iterable[fx.Node], what: str) -> None:
    """Raises CaptureError for the first such operation, with the user's line; `what` is being traced."""
    for node in nodes:
        positions = _ONE_DTYPE.get(node.target) or _NORMS.get(node.target)
        if positions is None:
            continue
        given = [node.args[at] for at in positions if at < len(node.args)]
        values = [meta.value(argument) for argument in given if isinstance(argument, fx.Node)]
        dtypes = dict.fromkeys(value.dtype for value in values if isinstance(value, torch.Tensor))
        if len(dtypes) > 1 and not (node.target in _NORMS and next(iter(dtypes)) in _HALF):
            found = " and ".join(str(dtype) for dtype in dtypes)
            place = ".".join(filter(None, [what, meta.module_path(node)]))
            region = f", region {meta.tag_region(node)}," if meta.tag_region(node) else ""
            raise CaptureError(
                f"cannot trace {what}: {node.target} in {place}{region} takes tensors of one dtype and gets {found}: "
                f"convert one of them with .to(...){user_frame(meta.stack(node))}"
            )
