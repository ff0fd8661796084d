"""Adapter to activation checkpointing: ``torch.utils.checkpoint`` is honoured in a captured graph, else refused.

needs       a graph that Dynamo captured, in which each checkpointed call is one operation with a graph of its own.
does        runs the graph node by node, with each checkpointed graph in its place.
guarantees  every operation of a checkpointed call carries a mark, which ``annopipe.graphs.recomputation`` reads; the
            policy of a selective checkpoint (``context_fn``) decides which of them are marked as saved.

Names of ``torch.utils.checkpoint`` that are not public: ``_CheckpointFrame``, which every checkpoint without reentrance
makes, however it was imported, and ``CheckpointFunction``, which every one with reentrance applies.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
import torch.utils.checkpoint as torch_checkpoint
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from annopipe.graphs import meta
from annopipe.graphs.failures import PlacedError, user_frame

__all__ = ["CheckpointError", "checkpoints_refused", "replay"]

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
_CONTEXT_KEY = "_checkpoint_context_fn"  # in the meta of a checkpointed graph
_REFUSAL = (
    "forward uses torch.utils.checkpoint, which direct tracing does not see (it would save everything): use "
    "ap.trace(..., strict=True), which recomputes what the checkpoint covers, or take the checkpoint out"
)


class CheckpointError(Exception):
    """A checkpoint that cannot be honoured."""


@contextlib.contextmanager
def checkpoints_refused() -> Iterator[None]:
    """While it is open, a checkpoint that would save memory raises.

    Raises:
        CheckpointError: where the checkpoint is called.
    """
    frame, function = torch_checkpoint._CheckpointFrame, torch_checkpoint.CheckpointFunction
    apply = function.apply

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                raise CheckpointError(_REFUSAL)
            return original(*args, **kwargs)

        return refuse

    torch_checkpoint._CheckpointFrame = refusing(frame)  # type: ignore[assignment, misc]
    function.apply = refusing(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch_checkpoint._CheckpointFrame = frame  # type: ignore[misc]
        del function.apply  # it is inherited


def replay(graph_module: fx.GraphModule, module: nn.Module, *inputs: Any) -> Any:
    """Run a captured graph operation by operation, so that tracing sees them, and the tags of their nodes.

    Args:
        module: whose parameters a checkpoint with reentrance may not be the only ones to want gradients.

    Raises:
        PlacedError: from whatever goes wrong.
    """
    return _Replay(graph_module, {id(p) for p in module.parameters()}, itertools.count()).run(*inputs)


class _Replay(fx.Interpreter):
    def __init__(self, graph_module: fx.GraphModule, parameters: set[int], groups: Iterator[int]) -> None:
        super().__init__(graph_module)
        self.extra_traceback = False
        self._parameters = parameters
        self._groups = groups

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; what goes wrong names the user's line, which the traceback does not have."""
        try:
            return super().run_node(n)
        except PlacedError:
            raise
        except Exception as error:
            raise PlacedError(user_frame(meta.stack(n))) from error

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is not _CHECKPOINT:
            return super().call_function(target, args, kwargs)
        body, *inputs = args
        if kwargs.get("use_reentrant") is not False and torch.is_grad_enabled():
            self._refuse_lost_gradients(inputs)
        context_fn = body.meta.get(_CONTEXT_KEY)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_Marks(next(self._groups), chosen=context_fn is not None))
            if context_fn is not None:
                stack.enter_context(context_fn()[0])  # the other one is for running Python again, which no graph does
            return _Replay(body, self._parameters, self._groups).run(*inputs)

    def _refuse_lost_gradients(self, inputs: list[Any]) -> None:
        wanted = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
        if wanted and all(id(t) in self._parameters for t in wanted):
            raise CheckpointError(
                "torch.utils.checkpoint(use_reentrant=True) of inputs that need no gradient gives the parameters "
                "inside none: use use_reentrant=False"
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
