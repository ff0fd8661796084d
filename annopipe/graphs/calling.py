"""The call of a module as tracing makes it: flat tensors in, flat tensors out, and nothing else changed.

needs       a module, its arguments by path, and the loss function and target of a last stage.
does        puts the arguments together again, runs forward (and the loss), flattens what it returned.
guarantees  what forward changed on the module is put back and refused; tied parameters are one tensor, whose gradients
            add up in autograd's order; every output is a tensor of its own, since AOTAutograd leaves outputs that are
            views out of the graph (cleanup takes these copies out again).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import nn

from annopipe import pytrees
from annopipe.auxiliary import auxiliary_losses
from annopipe.errors import CaptureError
from annopipe.graphs.arguments import Arguments, Guard
from annopipe.graphs.attributes import SideEffects
from annopipe.graphs.capture import foreign_tensors_as_constants
from annopipe.graphs.cleanup import BOUNDARY_KEY
from annopipe.graphs.hit_loops import HitLoops
from annopipe.graphs.module_paths import recorded_module_paths
from annopipe.graphs.random_state import noticed_draws
from annopipe.graphs.stage_graphs import AUXILIARY_LOSS, LOSS, OutputLayout

__all__ = ["INNER", "TracedCall", "call_stage"]

INNER = "stage"  # the module's name inside a TracedCall


def call_stage(  # the names are those of sources of guards; no globals, since Dynamo captures it alone
    self: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: Callable[..., Any] | None,
    target: tuple[Any, ...],
) -> tuple[Any, Any]:
    """What forward and, on a last stage, ``loss_fn`` return."""
    result = self(*args, **kwargs)
    return result, None if loss_fn is None else loss_fn(result, *target)


class TracedCall(nn.Module):
    """Calls the module on flat tensors. Tracing runs it more than once; the attributes tell of the last run.

    Args:
        run: ``call_stage``, or a capture of it.

    Attributes:
        layout: how the module's result is put together from outputs.
        moved: what forward did to random generators outside of the graph.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: Arguments,
        loss_fn: Callable[..., Any] | None,
        target: Arguments,
        run: Callable[..., Any] = call_stage,
    ) -> None:
        super().__init__()
        self.add_module(INNER, module)
        self._arguments = arguments
        self._target = target
        self._loss = (loss_fn,)  # in a tuple: a loss that is a module is no part of this one
        self._stage = run
        self._is_captured = run is not call_stage
        self._tied = _tied(module)
        self.layout = OutputLayout((), (), (), pytrees.tree_flatten(())[1])
        self.moved: list[str] = []

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the module on its tensors, then the loss on the target's, which follow them."""
        own = dict(zip(self._arguments.paths, tensors, strict=False))
        targets = dict(zip(self._target.paths, tensors[len(own) :], strict=True))
        with contextlib.ExitStack() as stack:
            stack.enter_context(foreign_tensors_as_constants())
            moved = stack.enter_context(noticed_draws())
            loops = None if self._is_captured else stack.enter_context(HitLoops())  # a capture has no Python loops
            added = stack.enter_context(auxiliary_losses())
            result, loss = self._run(own, targets)
            if loops is not None:
                loops.check_finished()
            self.moved = moved()
        return self._flatten(result, loss, sum(added[1:], added[0]) if added else None)

    def _run(self, own: dict[str, Any], targets: dict[str, Any]) -> tuple[Any, torch.Tensor | None]:
        module = self.get_submodule(INNER)
        call = self._arguments.rebuild(own)
        with _joined(self._tied), _put_back(module), recorded_module_paths(module):
            target = self._target.rebuild(targets).args
            result, loss = self._stage(module, call.args, call.kwargs, *self._loss, target)
        if self._loss != (None,) and (not isinstance(loss, torch.Tensor) or loss.dim() != 0):
            raise CaptureError("loss_fn returns one scalar tensor; add up a per-token loss inside it")
        if changed := self._arguments.changed(call, own):
            raise CaptureError(
                f"{type(module).__name__}.forward changes what argument {', '.join(changed)} holds: "
                "a graph cannot replay that; return the value instead"
            )
        return result, loss

    def _flatten(
        self, result: Any, loss: torch.Tensor | None, auxiliary: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        leaves, spec = pytrees.tree_flatten(result)
        paths = pytrees.leaf_paths(result, "output")
        if twice := sorted({path for path in paths if paths.count(path) > 1}):
            raise CaptureError(f"two outputs are called {', '.join(twice)}: use other dictionary keys")
        for path, leaf in zip(paths, leaves, strict=True):
            if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise CaptureError(f"{path} is a number that depends on data: return it as a tensor")
        tensors = {path: leaf for path, leaf in zip(paths, leaves, strict=True) if isinstance(leaf, torch.Tensor)}
        constants = tuple(Guard.of(p, leaf) for p, leaf in zip(paths, leaves, strict=True) if p not in tensors)
        losses = {LOSS: loss, AUXILIARY_LOSS: auxiliary}
        present = {name: value for name, value in losses.items() if value is not None}
        self.layout = OutputLayout(tuple(paths), tuple(tensors), constants, spec, tuple(present))
        outputs = [*present.values(), *(t if loss is None else t.detach() for t in tensors.values())]
        with fx_traceback.annotate({BOUNDARY_KEY: True}):  # the last first: gradients of one tensor add up as in eager
            return tuple(reversed([output.clone() for output in reversed(outputs)]))


Place = tuple[dict[str, Any], str]  # a module's table of parameters or buffers, and a name in it


def _tied(module: nn.Module) -> list[tuple[Place, Place]]:
    """Places that hold one tensor: each further one, with the first."""
    first: dict[int, Place] = {}
    tied = []
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table_of_first, _ = place = first.setdefault(id(tensor), (table, name))
                    if table_of_first is not table or place[1] != name:
                        tied.append(((table, name), place))
    return tied


@contextlib.contextmanager
def _joined(tied: list[tuple[Place, Place]]) -> Iterator[None]:
    """Have tied places hold one tensor again; AOTAutograd puts a tensor of its own into each."""
    apart = [table[name] for (table, name), _ in tied]
    try:
        for (table, name), (first_table, first_name) in tied:
            table[name] = first_table[first_name]
        yield
    finally:
        for ((table, name), _), tensor in zip(tied, apart, strict=True):
            table[name] = tensor


@contextlib.contextmanager
def _put_back(module: nn.Module) -> Iterator[None]:
    """Undo what happens to the module's attributes inside, also on an exception.

    Raises:
        CaptureError: something had changed.
    """
    before = SideEffects(module)
    try:
        yield
    except BaseException:
        before.restore()
        raise
    if changed := before.restore():
        raise CaptureError(
            f"{type(module).__name__}.forward changes {', '.join(changed)} on the module: a graph cannot replay that, "
            "and two microbatches in flight would share it; return the value from forward, or update a buffer in place"
        )
