"""A loss that needs the whole batch, such as a contrastive one: between all forwards and all backwards of its stage.

The outputs of all microbatches are put together along their first dimension (scalars become a vector), and so are the
targets; ``loss_fn`` is called once, and its gradients are cut up again. It runs as it is, outside of the stage's graph,
and is differentiated with respect to the outputs only: anything else that is trained in it is refused.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from annopipe import pytrees
from annopipe.errors import PipelineError
from annopipe.graphs.arguments import TARGET
from annopipe.graphs.stage_graphs import StageGraphs

__all__ = ["BatchLoss", "Scale", "check_batch_loss"]

Scale = float | torch.Tensor

_ONLY_OUTPUTS = (
    "that requires grad, and a loss over the whole batch gives gradients to the outputs of its stage only: make what "
    "is trained a part of the stage's module, and let the module return what loss_fn needs of it"
)


class BatchLoss:
    """The loss of one step over the outputs of a stage.

    Attributes:
        found: the loss, detached, when it has been computed.

    Args:
        stage: whose outputs, for messages.
        graphs: of this stage.
        loss_fn: called with the outputs and the targets of all microbatches.
    """

    def __init__(self, stage: int, graphs: StageGraphs, loss_fn: Callable[[Any, Any], torch.Tensor]) -> None:
        self._stage, self._graphs, self._loss_fn = stage, graphs, loss_fn
        self._ports = (
            [port.source for port in graphs.backward.inputs if port.role == "tangent"] if graphs.backward else []
        )
        self._outputs: dict[int, dict[str, Any]] = {}
        self._gradients: dict[int, dict[str, torch.Tensor]] = {}
        self.found: torch.Tensor | None = None

    def begin(self) -> None:
        """Forget the last step."""
        self._outputs.clear()
        self._gradients.clear()
        self.found = None

    def keep(self, microbatch: int, result: dict[str, Any]) -> None:
        """Take the outputs of a microbatch."""
        self._outputs[microbatch] = {name: result[name] for name in self._graphs.layout.tensors}

    def gradients(self, microbatch: int, targets: Sequence[Any], scale: Scale) -> dict[str, torch.Tensor]:
        """Of the outputs of one microbatch, by port; the first call computes the loss.

        Args:
            microbatch: which one.
            targets: of all microbatches.
            scale: what the loss is multiplied with before it is differentiated.

        Raises PipelineError when ``loss_fn`` does not give a scalar that depends on the outputs, or depends on another
        tensor that requires grad.
        """
        if self.found is None:
            self._compute(targets, scale)
        return self._gradients.pop(microbatch)

    def _compute(self, targets: Sequence[Any], scale: Scale) -> None:
        microbatches = sorted(self._outputs)
        pieces = [self._outputs.pop(microbatch) for microbatch in microbatches]
        with torch.enable_grad():
            whole = {name: _joined([piece[name] for piece in pieces]) for name in pieces[0]}
            wanted = [whole[name].requires_grad_() for name in self._ports]
            target = _joined_tree([targets[m] for m in microbatches])
            loss = self._loss_fn(self._graphs.result(whole), target)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise PipelineError(
                    f"stage {self._stage}: loss_fn is called once with the outputs of all microbatches, and has to "
                    "return one number that depends on them"
                )
            others = [leaf for leaf in _leaves(loss) if not any(leaf is output for output in wanted)]
            if others:
                shapes = ", ".join(str(tuple(leaf.shape)) for leaf in others)
                raise PipelineError(f"stage {self._stage}: loss_fn reads a tensor of shape {shapes} {_ONLY_OUTPUTS}")
            found = torch.autograd.grad(loss * scale, wanted, allow_unused=True)
        self.found = loss.detach()
        self._gradients = {microbatch: {} for microbatch in microbatches}
        for name, gradient in zip(self._ports, found, strict=True):
            if gradient is not None:
                sizes = [piece[name].shape[0] if piece[name].dim() else 1 for piece in pieces]
                for microbatch, piece, part in zip(microbatches, pieces, gradient.split(sizes), strict=True):
                    self._gradients[microbatch][name] = part.reshape(piece[name].shape)


def check_batch_loss(loss_fn: Callable[[Any, Any], torch.Tensor], target: Any) -> None:
    """Raises PipelineError for a loss over the whole batch that could not give all gradients that are asked for.

    Args:
        loss_fn: what is called.
        target: of one microbatch.

    >>> check_batch_loss(nn.CrossEntropyLoss(), torch.arange(3))
    """
    inside = inspect.unwrap(loss_fn)
    for name, parameter in inside.named_parameters() if isinstance(inside, nn.Module) else ():
        if parameter.requires_grad:
            raise PipelineError(f"loss_fn has a parameter, {name}, {_ONLY_OUTPUTS}")
    for path, leaf in zip(pytrees.leaf_paths(target, TARGET), pytrees.tree_leaves(target), strict=True):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            raise PipelineError(f"loss_fn is given {path}, {_ONLY_OUTPUTS}, or detach the target")


def _leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that would get a gradient from a loss."""
    pending, seen = [loss.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [before for before, _ in node.next_functions]
            if isinstance(leaf := getattr(node, "variable", None), torch.Tensor):
                yield leaf


def _joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([piece if piece.dim() else piece[None] for piece in pieces])


def _joined_tree(values: Sequence[Any]) -> Any:
    """The values with their tensors put together; other leaves are those of the first."""
    leaves = [pytrees.tree_leaves(value) for value in values]
    joined = [_joined(each) if isinstance(each[0], torch.Tensor) else each[0] for each in zip(*leaves, strict=True)]
    return pytrees.tree_unflatten(joined, pytrees.tree_flatten(values[0])[1])
