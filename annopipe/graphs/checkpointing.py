"""Adapter to activation checkpointing: ``torch.utils.checkpoint`` is honoured in a captured graph, else refused.

needs       forward as it runs under direct tracing; or a checkpointed call that Dynamo captured as one operation.
does        refuses the first; runs the graph of the second in its place.
guarantees  a checkpoint that would save memory is refused however it was imported, as are other hooks on saved tensors
            (tracing would leave out what they do to gradients); every operation of a captured one
            carries a mark, which ``annopipe.graphs.recomputation`` reads, and the policy of a selective checkpoint
            (``context_fn``) says which of them are saved.

Names of ``torch.utils.checkpoint`` that are not public: ``_CheckpointFrame``, which every checkpoint without reentrance
makes, and ``CheckpointFunction``, which every one with reentrance applies.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
import torch.utils.checkpoint as torch_checkpoint
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from annopipe.graphs import meta

__all__ = ["CheckpointError", "checkpoints_refused", "is_checkpoint", "marked_as_checkpoint", "refuse_lost_gradients"]

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
_CONTEXT_KEY = "_checkpoint_context_fn"  # in the meta of a checkpointed graph
_REFUSAL = (
    "forward uses torch.utils.checkpoint, which direct tracing does not see (it would save everything): use "
    "ap.trace(..., strict=True), which recomputes what the checkpoint covers, or take the checkpoint out"
)


_HOOKS_REFUSAL = (
    "forward uses torch.autograd.graph.saved_tensors_hooks (as save_on_cpu does), which no graph runs: take it out; to "
    "save less, use torch.utils.checkpoint and ap.trace(..., strict=True)"
)


class CheckpointError(Exception):
    """A checkpoint that cannot be honoured."""


@contextlib.contextmanager
def checkpoints_refused() -> Iterator[None]:
    """While it is open, a checkpoint that would save memory is refused, and so are hooks on what is saved.

    Raises:
        CheckpointError: where the checkpoint is called.
    """
    frame, function = torch_checkpoint._CheckpointFrame, torch_checkpoint.CheckpointFunction
    hooks = torch.autograd.graph.saved_tensors_hooks
    enter = hooks.__enter__

    def refusing(original: Callable[..., Any], reason: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                raise CheckpointError(reason)
            return original(*args, **kwargs)

        return refuse

    torch_checkpoint._CheckpointFrame = refusing(frame, _REFUSAL)  # type: ignore[assignment, misc]
    function.apply = refusing(function.apply, _REFUSAL)  # type: ignore[method-assign]
    hooks.__enter__ = refusing(enter, _HOOKS_REFUSAL)  # type: ignore[method-assign]
    try:
        yield
    finally:
        hooks.__enter__ = enter  # type: ignore[method-assign]
        torch_checkpoint._CheckpointFrame = frame  # type: ignore[misc]
        del function.apply  # the original one is inherited


def is_checkpoint(target: Any) -> bool:
    """Whether the operation of a captured graph is a checkpointed call; its first argument is a graph of its own."""
    return target is _CHECKPOINT


@contextlib.contextmanager
def marked_as_checkpoint(body: fx.GraphModule, group: int) -> Iterator[None]:
    """While it is open, operations are traced as those of a checkpointed call.

    Args:
        body: the graph of the call, which knows of a policy.
        group: a number of the call.
    """
    context_fn = body.meta.get(_CONTEXT_KEY)
    # Of the two contexts, the other one is for running Python again, which no graph does.
    policy = contextlib.nullcontext() if context_fn is None else context_fn()[0]
    with _Marks(group, chosen=context_fn is not None), policy:
        yield


def refuse_lost_gradients(inputs: Sequence[Any], options: dict[str, Any], parameters: set[int]) -> None:
    """Refuse a checkpoint with reentrance none of whose inputs, besides parameters (by id), wants a gradient.

    Raises:
        CheckpointError: it is one; in eager, the parameters inside get no gradients.
    """
    wanted = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    reentrant = options.get("use_reentrant") is not False and torch.is_grad_enabled()
    if reentrant and wanted and all(id(t) in parameters for t in wanted):
        raise CheckpointError(
            "torch.utils.checkpoint(use_reentrant=True) of inputs that want no gradient gives the parameters inside "
            "none: use use_reentrant=False"
        )


class _Marks(TorchDispatchMode):
    """Marks each operation as one of a checkpointed group; of nested groups, the outermost counts."""

    supports_higher_order_operators = True

    def __init__(self, group: int, *, chosen: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._group = group
        self._chosen = chosen  # whether a policy says what is saved

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether torch.compile inside stays as it is."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with meta.marked(fx_traceback.get_current_meta(), self._group, keep_policy=self._chosen):
            return func(*args, **(kwargs or {}))
