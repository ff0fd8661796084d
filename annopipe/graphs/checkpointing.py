"""Adapter to activation checkpointing: ``torch.utils.checkpoint`` is honoured in a graph, or refused by name.

needs       forward as it runs under direct tracing; or a checkpointed call that Dynamo captured as one operation.
does        runs what is checkpointed in place, once, and marks its operations, which
            ``annopipe.graphs.recomputation`` reads.
guarantees  a checkpoint is seen however it was imported; the policy of a selective one (``context_fn``) says which of
            its operations are saved, and any other context is refused; so are other hooks on saved tensors (tracing
            would leave out what they do to gradients).

Names of ``torch.utils.checkpoint`` that are not public: the generator that every checkpoint without reentrance steps
through, ``_CheckpointFrame``, which that makes, and ``CheckpointFunction``, which every one with reentrance applies.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
import torch.utils.checkpoint as torch_checkpoint
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from annopipe.graphs import meta
from annopipe.pytrees import tree_leaves

__all__ = [
    "CheckpointError",
    "checkpoints_marked",
    "checkpoints_refused",
    "is_checkpoint",
    "marked_as_checkpoint",
    "refuse_lost_gradients",
]

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
_SELECTIVE = torch_checkpoint._CachingTorchDispatchMode
_CONTEXT_KEY = "_checkpoint_context_fn"  # in the meta of a checkpointed graph
_REFUSAL = "it uses torch.utils.checkpoint"
_HOOKS_REFUSAL = (
    "forward uses torch.autograd.graph.saved_tensors_hooks (as save_on_cpu does), which no graph runs: take it out; to "
    "save less, use torch.utils.checkpoint, or ap.trace(..., recompute=...)"
)
_REENTRANT_REFUSAL = (
    "torch.utils.checkpoint(use_reentrant=True) of inputs that want no gradient gives the parameters inside none: use "
    "use_reentrant=False"
)
_OLD_GENERATOR = "_checkpoint_without_reentrant_generator"  # takes the arguments behind the options, up to 2.14
_NEW_GENERATOR = f"{_OLD_GENERATOR}_impl"  # takes them as a tuple and a dictionary, and all options by name
_GENERATOR = _NEW_GENERATOR if hasattr(torch_checkpoint, _NEW_GENERATOR) else _OLD_GENERATOR
_COMPOSABLE = "torch.distributed._composable.checkpoint_activation"  # has the generator under the same name


class CheckpointError(Exception):
    """A checkpoint that cannot be honoured."""


@contextlib.contextmanager
def checkpoints_refused() -> Iterator[None]:
    """While it is open, a checkpoint that would save memory is refused, and so are hooks on what is saved.

    Raises:
        CheckpointError: where the checkpoint is called.
    """
    function = torch_checkpoint.CheckpointFunction
    with _unusual_refused():
        function.apply = _refusing(function.apply, _REFUSAL)  # type: ignore[method-assign]
        try:
            yield
        finally:
            del function.apply  # the original one is inherited


@contextlib.contextmanager
def checkpoints_marked() -> Iterator[None]:
    """While it is open, what is checkpointed runs in place, and its operations are traced as those of a group.

    Raises:
        CheckpointError: where a checkpoint is called that cannot be honoured, or hooks on what is saved are used.
    """
    groups = itertools.count()
    function = torch_checkpoint.CheckpointFunction
    original: Callable[..., Any] = function.apply
    modules = [torch_checkpoint, *([sys.modules[_COMPOSABLE]] if _COMPOSABLE in sys.modules else [])]
    generators = [(module, getattr(module, _GENERATOR)) for module in modules]

    def steps(*given: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            yield
            return
        policy, is_chosen = _policy(_context_fn(given, options))
        with _current_meta_kept(), _Marks(next(groups), chosen=is_chosen), policy:
            yield

    def apply(run: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(run, preserve, *args)
        with _current_meta_kept(), _Marks(next(groups), chosen=False):
            result = run(*args)
        if _want_gradient(tree_leaves(result)) and not _want_gradient(args):
            raise CheckpointError(_REENTRANT_REFUSAL)
        return result

    with _unusual_refused():
        function.apply = apply  # type: ignore[method-assign]
        for module, _ in generators:
            setattr(module, _GENERATOR, steps)
        try:
            yield
        finally:
            for module, generator in generators:
                setattr(module, _GENERATOR, generator)
            del function.apply  # the original one is inherited


@contextlib.contextmanager
def _unusual_refused() -> Iterator[None]:
    """Refuse hooks on saved tensors, and whoever makes the frame of a checkpoint."""
    frame, hooks = torch_checkpoint._CheckpointFrame, torch.autograd.graph.saved_tensors_hooks
    enter = hooks.__enter__
    torch_checkpoint._CheckpointFrame = _refusing(frame, _REFUSAL)  # type: ignore[assignment, misc]
    hooks.__enter__ = _refusing(enter, _HOOKS_REFUSAL)  # type: ignore[method-assign]
    try:
        yield
    finally:
        hooks.__enter__ = enter  # type: ignore[method-assign]
        torch_checkpoint._CheckpointFrame = frame  # type: ignore[misc]


def _refusing(original: Callable[..., Any], reason: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            raise CheckpointError(reason)
        return original(*args, **kwargs)

    return refuse


def _context_fn(given: Sequence[Any], options: dict[str, Any]) -> Any:
    """The context_fn in what the generator is called with."""
    if _GENERATOR == _OLD_GENERATOR and len(given) > 2:
        return given[2]
    return options.get("context_fn", torch_checkpoint.noop_context_fn)


def _policy(context_fn: Any) -> tuple[contextlib.AbstractContextManager[Any], bool]:
    """The context of a checkpoint's forward, and whether it says what is saved.

    Of the two contexts, the other one is for running Python again, which no graph does.
    """
    first, second = context_fn()
    plain = (contextlib.nullcontext, torch_checkpoint._CachedTorchDispatchMode)
    of_composable = getattr(context_fn, "__module__", "") == _COMPOSABLE  # its own: no checkpoint in a checkpoint
    for context, known in ((first, (contextlib.nullcontext, _SELECTIVE)), (second, plain)):
        if not isinstance(context, known) and not (of_composable and context is second):
            raise CheckpointError(
                f"torch.utils.checkpoint has a context_fn that gives a {type(context).__name__}, and a graph runs no "
                "contexts: use create_selective_checkpoint_contexts, or leave context_fn out"
            )
    return first, isinstance(first, _SELECTIVE)


@contextlib.contextmanager
def _current_meta_kept() -> Iterator[None]:
    """Put back what new nodes are given; selective checkpoints leave their marks there."""
    current = fx_traceback.get_current_meta()
    before = dict(current)
    try:
        yield
    finally:
        current.clear()
        current.update(before)


def _want_gradient(values: Iterable[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


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
        raise CheckpointError(_REENTRANT_REFUSAL)


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
