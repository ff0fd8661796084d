"""What one stage hands to the next: nested containers of tensors and constants, described once, before any step.

A stage that returns a tuple calls the next one with its elements as positional arguments; anything else is the one
argument. Tensors cross as messages, constants (None, numbers, texts) are known to both sides and never sent.
"""

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from annopipe import pytrees
from annopipe.errors import PipelineError
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graphs import StageGraphs

__all__ = ["Boundary", "Link", "TensorLeaf"]


@dataclasses.dataclass(frozen=True)
class TensorLeaf:
    """One tensor that crosses.

    port: the output port of the stage that makes it.
    differentiable: whether its gradient is asked for, if the next stage has one to give.
    """

    port: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None
    differentiable: bool

    def empty(self, device: torch.device) -> torch.Tensor:
        """A contiguous tensor to receive into."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def example(self, device: torch.device) -> torch.Tensor:
        """What the next stage is traced with."""
        value = torch.zeros(self.shape, dtype=self.dtype, device=device)
        return self.laid_out(value).requires_grad_(self.differentiable)

    def laid_out(self, value: torch.Tensor) -> torch.Tensor:
        """The value with the strides that the stage before gave it; itself when they are the usual ones."""
        if self.strides is None or self.strides == value.stride() or 0 in self.strides:
            return value
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=value.device).copy_(value)


@dataclasses.dataclass(frozen=True)
class Boundary:
    """The output of a stage.

    form: the containers, with numbers for leaves; not a ``TreeSpec``, which PyTorch warns of when it is unpickled.
    tensors: in flattening order.  constants: the other leaves, by their position among all leaves.
    """

    form: Any
    tensors: tuple[TensorLeaf, ...]
    constants: tuple[tuple[int, Any], ...]

    @classmethod
    def of(cls, graphs: StageGraphs, stage: int) -> "Boundary":
        """The boundary behind a traced stage.

        Raises PipelineError for what the next stage could not know: a size that depends on data, or a constant that
        another process cannot be told.
        """
        layout = graphs.layout
        ports = {port.name: port for port in graphs.forward.outputs}
        tangents = {p.source for p in graphs.backward.inputs if p.role == "tangent"} if graphs.backward else set()
        constants = {guard.path: guard.value for guard in layout.constants}
        tensors = [_leaf(ports[path], path in tangents, stage) for path in layout.paths if path in layout.tensors]
        others = [(at, constants[path]) for at, path in enumerate(layout.paths) if path not in layout.tensors]
        form = pytrees.tree_unflatten(range(len(layout.paths)), layout.spec)
        for value in (form, *(value for _, value in others)):
            _check_told(value, stage)
        return cls(form, tuple(tensors), tuple(others))

    @property
    def described(self) -> str:
        """What is handed on, for messages: "hands on float32 [2, 5]"."""
        found = [f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}" for leaf in self.tensors]
        return f"hands on {', '.join(found) or 'no tensor'}"

    def value_with(self, tensors: Sequence[Any]) -> Any:
        """What the stage returns, with these tensors in it."""
        known, rest = dict(self.constants), iter(tensors)
        leaves = [known[at] if at in known else next(rest) for at in range(len(self.tensors) + len(known))]
        return pytrees.tree_unflatten(leaves, pytrees.tree_flatten(self.form)[1])

    def call_with(self, tensors: Sequence[Any], *, spreads_lists: bool = False) -> tuple[Any, ...]:
        """The positional arguments of the next stage: the elements of a tuple, of a list where that is asked for."""
        value = self.value_with(tensors)
        return tuple(value) if type(value) is tuple or (spreads_lists and type(value) is list) else (value,)


def _check_told(value: Any, stage: int) -> None:
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # what pickle says of functions, locks, ...
        raise PipelineError(
            f"stage {stage} returns something that its next stage cannot be told ({error}): return tensors, numbers, "
            "texts, None and containers of them"
        ) from error


def _leaf(port: Port, differentiable: bool, stage: int) -> TensorLeaf:
    sizes = [extent for extent in port.shape if not isinstance(extent, int)]
    if sizes or port.dtype is None:
        raise PipelineError(
            f"stage {stage}: {port.name} has a size that depends on data ({', '.join(map(str, sizes))}), so the next "
            "stage cannot know it; pad it, or cut the model elsewhere"
        )
    shape = tuple(extent for extent in port.shape if isinstance(extent, int))
    return TensorLeaf(port.name, shape, port.dtype, port.strides, differentiable)


@dataclasses.dataclass(frozen=True)
class Link:
    """A boundary as both of its stages know it.

    returning: positions, among the boundary's tensors, of those whose gradient comes back.
    device: of this rank's stages.
    """

    boundary: Boundary
    returning: tuple[int, ...]
    device: torch.device

    @property
    def returning_ports(self) -> list[str]:
        """The output ports whose gradients come back."""
        return [self.boundary.tensors[index].port for index in self.returning]

    def forward_buffers(self) -> list[torch.Tensor]:
        """Memory for the tensors of one microbatch."""
        return [leaf.empty(self.device) for leaf in self.boundary.tensors]

    def backward_buffers(self) -> list[torch.Tensor]:
        """Memory for the gradients of one microbatch."""
        return [self.boundary.tensors[index].empty(self.device) for index in self.returning]

    def laid_out(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors with the strides that the stage before gave them."""
        return [leaf.laid_out(tensor) for leaf, tensor in zip(self.boundary.tensors, tensors, strict=True)]
