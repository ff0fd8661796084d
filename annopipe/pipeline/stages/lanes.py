"""The graphs that a microbatch of a stage runs as: one on all of it, or one on each of its nano-batches.

    inputs -> split -> F0, F1 -> join -> outputs          gradients of outputs -> split -> B0, B1 -> join -> of inputs

The other stages, the messages and the loss see whole microbatches. The dimension in which a value is longer for the
whole than for the parts is that of the batch; a value that has none is the same for every part.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graphs import AUXILIARY_LOSS, StageGraphs
from annopipe.pipeline.stages.kept_values import KeptValues, Scales, Values
from annopipe.pipeline.stages.nano_checks import batch_dim, check_alike, check_outputs

__all__ = ["Lanes", "NanoBatches"]

Gradients = Mapping[str, torch.Tensor]


class Lanes:
    """One lane: the whole microbatch at once.

    Attributes:
        kept: for each lane its graphs, and what microbatches have left there.
        fractions: how much of a microbatch each lane has.
    """

    def __init__(self, kept: Sequence[KeptValues], fractions: Sequence[float] = (1.0,)) -> None:
        self.kept, self.fractions = kept, fractions

    def split_inputs(self, inputs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The inputs of each lane, by port."""
        return [inputs]

    def split_gradients(self, gradients: Gradients) -> list[Gradients]:
        """The gradients of each lane's outputs, by output."""
        return [gradients]

    def split_scales(self, scales: Scales) -> list[Scales]:
        """What each lane's losses are multiplied with."""
        return [scales]

    def join(self, _: str, results: Sequence[Values]) -> Values:
        """What the whole microbatch has of the results of an action: outputs and losses, or gradients of inputs."""
        return results[0]


class NanoBatches(Lanes):
    """Several lanes, one for each nano-batch, the longer ones first.

    Args:
        stage: its number.
        whole: its graphs for a whole microbatch.
        parts: its graphs for each nano-batch, without ``loss_fn``.
        lengths: how many sequences each nano-batch has.
        auxiliary: how auxiliary losses of nano-batches count; None where there must be none.

    Raises PipelineError for a stage that cannot be run so, with the reason.
    """

    def __init__(
        self,
        stage: int,
        whole: StageGraphs,
        parts: Sequence[StageGraphs],
        lengths: Sequence[int],
        auxiliary: str | None,
    ) -> None:
        fractions = [length / sum(lengths) for length in lengths]
        super().__init__([KeptValues(stage, graphs) for graphs in parts], fractions)
        check_alike(stage, whole, parts, auxiliary)
        self._starts = [0, *accumulate(lengths)][:-1]
        self._lengths = lengths
        self._shares = fractions if auxiliary == "mean" else [1.0] * len(parts)
        self._layout = parts[0].layout
        self._outputs = {port.name: port for port in whole.forward.outputs if port.name in whole.layout.tensors}
        inputs = {port.name: port for port in whole.forward.inputs if port.role == "input"}
        taken = [port.name for port in parts[0].forward.inputs if port.role == "input"]
        self._dims: dict[str, int | None] = {}  # of inputs and outputs, by port
        for name, port in (*((name, inputs[name]) for name in taken), *self._outputs.items()):
            shapes = [graphs.forward.port(name).shape for graphs in parts]
            self._dims[name] = batch_dim(f"stage {stage}: {name}", port.shape, shapes, lengths)
        self._taken = [{port.name: port for port in graphs.forward.inputs if port.role == "input"} for graphs in parts]
        self._tangents = [_tangents(graphs) for graphs in parts]
        gradients = parts[0].backward.outputs if parts[0].backward is not None else ()
        returned = [port for port in gradients if port.role == "input_grad"]
        self._returned = [(port.name, self._dims.get(f"input.{port.source}")) for port in returned]
        check_outputs(stage, parts, {name for name, dim in self._dims.items() if dim is not None})

    def split_inputs(self, inputs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The inputs of each lane, by port: its part of the batch, and what has no batch whole."""
        return [
            {
                name: self._part(inputs[name], self._dims[name], lane, port)
                for name, port in taken.items()
                if name in inputs
            }
            for lane, taken in enumerate(self._taken)
        ]

    def split_gradients(self, gradients: Gradients) -> list[Gradients]:
        """The gradients of each lane's outputs; that of one without the batch goes to the first, which gave it."""
        return [
            {
                name: self._part(gradients[name], self._dims[name], lane, port)
                for name, port in tangents.items()
                if name in gradients and (lane == 0 or self._dims[name] is not None)
            }
            for lane, tangents in enumerate(self._tangents)
        ]

    def split_scales(self, scales: Scales) -> list[Scales]:
        """What each lane's auxiliary loss is multiplied with."""
        if AUXILIARY_LOSS not in scales:
            return [scales for _ in self._shares]
        return [{**scales, AUXILIARY_LOSS: scales[AUXILIARY_LOSS] * share} for share in self._shares]

    def join(self, kind: str, results: Sequence[Values]) -> Values:
        """The outputs put together and the losses added up, or the gradients of the inputs put together."""
        if kind != "F":
            return {
                name: _joined([result[name] for result in results], dim) for name, dim in self._returned if kind != "W"
            }
        found: Values = {}
        for name in self._layout.tensors:
            values, dim = [result[name] for result in results], self._dims[name]
            found[name] = values[0] if dim is None else self._outputs[name].laid_out(torch.cat(values, dim))
        for name in self._layout.losses:
            weighted = [result[name] * share for result, share in zip(results, self._shares, strict=True)]
            found[name] = sum(weighted[1:], weighted[0])
        return found

    def _part(self, value: torch.Tensor, dim: int | None, lane: int, port: Port) -> torch.Tensor:
        """A lane's part, lying in memory as what the lane's graphs were traced with."""
        return value if dim is None else port.laid_out(value.narrow(dim, self._starts[lane], self._lengths[lane]))


def _joined(gradients: Sequence[torch.Tensor], dim: int | None) -> torch.Tensor:
    """Of one input: of its parts put together, or, where all lanes have had the same, their sum."""
    if dim is not None:
        return torch.cat(list(gradients), dim)
    total = gradients[0]
    for more in gradients[1:]:
        total = total + more
    return total


def _tangents(graphs: StageGraphs) -> dict[str, Port]:
    """The ports of the gradients of outputs, by output."""
    if graphs.backward is None:
        return {}
    outputs = graphs.layout.tensors
    return {port.source: port for port in graphs.backward.inputs if port.role == "tangent" and port.source in outputs}
