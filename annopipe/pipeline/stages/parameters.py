"""The parameters of a stage over a step: gathered before it computes, their gradients added up and reduced after it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from annopipe.graphs.distributed_tensors import Layout, is_distributed_tensor, local_part
from annopipe.graphs.parameter_sharding import sum_dtypes
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.pipeline.stages.graph_call import GraphCall

__all__ = ["StageParameters"]

Values = dict[str, Any]


class StageParameters:
    """The parameters and buffers of a stage.

    Attributes:
        bound: the module's own tensors by port, of DTensors this rank's part.

    Args:
        fixed_sums: whether gradients are added up in the order of microbatches, whatever order they come in.
        first: the first microbatch that the stage sees.
    """

    def __init__(self, graphs: StageGraphs, *, fixed_sums: bool = False, first: int = 0) -> None:
        self._fixed_sums, self._first = fixed_sums, first
        self._ports = [(port.name, port.name.partition(".")[2]) for port in graphs.bound_ports()]
        self._unshard = GraphCall(graphs.unshard) if graphs.unshard is not None else None
        self._reduce = GraphCall(graphs.reduce_grad) if graphs.reduce_grad is not None else None
        results = graphs.backward.outputs if graphs.backward is not None else ()
        self._sources = {p.name: p.source for p in results if p.role in ("param_grad", "unreduced")}
        self._unreduced = {p.name: p for p in results if p.role == "unreduced"}
        self._reduced = [p for p in graphs.gradient_ports if p.name not in self._sources]
        self._casts = sum_dtypes(graphs.reduce_grad) if graphs.reduce_grad is not None else {}
        self._early: dict[str, dict[int, Sequence[torch.Tensor]]] = {}
        self._added: dict[str, int] = {}
        self._sums: dict[str, torch.Tensor] = {}
        self._gathered: Values = {}
        self._tensors: Mapping[str, torch.Tensor] = {}
        self.bound: Values = {}

    def begin_step(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the module's parameters and buffers, by name."""
        self.end_step()
        self.bound = {port: local_part(tensors[name]) for port, name in self._ports}
        self._tensors = tensors

    def end_step(self) -> None:
        """Forget what the step has left here, and the module's own tensors."""
        self.bound, self._tensors, self._gathered = {}, {}, {}
        for kept in (self._early, self._added, self._sums):
            kept.clear()

    def write_buffer(self, name: str, value: torch.Tensor) -> None:
        """Write the update of a buffer into the module's."""
        local_part(self._tensors[name]).detach().copy_(value)

    def unshard(self) -> Values:
        """The gathered parameters by port; gathered now if they are not there."""
        if self._unshard is not None and not self._gathered:
            self._gathered = self._unshard(dict(self.bound))[0]
        return self._gathered

    def reshard(self) -> None:
        """Let go of gathered parameters."""
        self._gathered = {}

    def accumulate(self, microbatch: int, results: Sequence[Mapping[str, Any]]) -> None:
        """Add up the gradients of a microbatch, those of its nano-batches in turn.

        Those that are to be reduced wait for ``reduce``.
        """
        for name in self._sources:
            gradients = [result[name] for result in results if result.get(name) is not None]
            if not self._fixed_sums:
                self._add(name, gradients)
            elif gradients:
                early = self._early.setdefault(name, {})
                early[microbatch] = gradients
                while (following := self._added.get(name, self._first)) in early:
                    self._add(name, early.pop(following))
                    self._added[name] = following + 1

    def reduce(self) -> None:
        """Reduce the sums of gradients over the ranks, if there are any, and add them to the parameters'."""
        if self._reduce is None or not self._sums:
            return
        sums = {name: self._for_reduction(name, total) for name, total in self._sums.items()}
        self._sums.clear()
        result = self._reduce(sums)[0]
        for port in self._reduced:
            self._add_to_parameter(port.source, result[port.name])

    def _add(self, name: str, gradients: Sequence[torch.Tensor]) -> None:
        for gradient in gradients:
            self._add_one(name, gradient)

    def _add_one(self, name: str, gradient: torch.Tensor) -> None:
        port = self._unreduced.get(name)
        if port is None:
            self._add_to_parameter(self._sources[name], gradient)
        elif name in self._sums:
            self._sums[name].add_(gradient)
        else:  # a copy, and in no narrower type than the parameter's, for the sum
            wide = [self._casts.get(name), *(self._tensors[p.source].dtype for p in self._reduced_from(port.source))]
            dtype = gradient.dtype
            for other in wide:
                dtype = dtype if other is None else torch.promote_types(dtype, other)
            self._sums[name] = gradient.detach().to(dtype, copy=True)

    def _for_reduction(self, name: str, total: torch.Tensor) -> torch.Tensor:
        """In the type that the graph takes: its own, or one that it casts to first."""
        own = self._unreduced[name].dtype
        return total if own is None or total.dtype == self._casts.get(name) else total.to(own)

    def _reduced_from(self, source: str) -> list[Any]:
        return [port for port in self._reduced if port.source == source]

    def _add_to_parameter(self, source: str, gradient: torch.Tensor) -> None:
        parameter = self._tensors[source]
        before = parameter.grad
        if not is_distributed_tensor(parameter):
            if before is None:
                # A copy: the graph may have handed the same memory to the weight half, which still needs it.
                parameter.grad = _laid_out_as(parameter, gradient)
            else:
                before.add_(gradient)
            return
        layout = Layout.of(parameter)
        if before is None:
            parameter.grad = layout.wrap(_laid_out_as(local_part(parameter), gradient))
        elif is_distributed_tensor(before) and before.placements == layout.placements:
            local_part(before).add_(gradient)
        else:
            parameter.grad = before + layout.wrap(gradient)


def _laid_out_as(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A copy with the parameter's strides, as autograd makes it."""
    if gradient.layout is not torch.strided:
        return gradient.detach().clone()
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient.detach())
