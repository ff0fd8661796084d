"""Which stretches are worth compiling: those in which Inductor has something to fuse."""

from collections.abc import Sequence

from torch import fx

from annopipe.graphs.ops import is_getitem

__all__ = ["NOT_WORTH", "not_worth"]

NOT_WORTH = "a library call, or less than two operations to fuse"
_LEAST = 2
# Operations that Inductor calls as eager PyTorch does; by the beginning of their names.
_CALLS = (
    *("mm.", "addmm.", "bmm.", "baddbmm.", "addbmm.", "mv.", "addmv.", "dot.", "_grouped_mm", "_scaled_mm"),
    *("convolution", "_scaled_dot_product", "_flash_attention", "_efficient_attention", "_cdist", "_fft"),
    *("topk", "sort", "kthvalue", "median", "mode.", "unique", "empty", "zeros.", "full."),
    *("index_put", "embedding_dense_backward", "nll_loss2d", "_embedding_bag"),
)


def not_worth(nodes: Sequence[fx.Node]) -> str:
    """Why a stretch is left as it is, or "".

    >>> graph = fx.Graph()
    >>> not_worth([graph.placeholder("x")])
    'a library call, or less than two operations to fuse'
    """
    fused = [node for node in nodes if node.op == "call_function" and not is_getitem(node) and not _calls(node)]
    return "" if len(fused) >= _LEAST else NOT_WORTH


def _calls(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "").startswith(_CALLS)
