"""What ``ap.Workload.from_model`` does: a named model, or somebody's own, on a cluster."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from annopipe.costs.hardware import Hardware
from annopipe.errors import CostError
from annopipe.graphs.capture import without_memory
from annopipe.graphs.process_groups import absent_group
from annopipe.graphs.recompute_choice import Recompute as RecomputeChoice
from annopipe.tuning.model_workload import ModelWorkload
from annopipe.tuning.priced import PricedModel, TrainingState
from annopipe.workloads.model_layers import ModelLayers
from annopipe.workloads.pricing import Known, priced
from annopipe.workloads.shipped import ModelSpec, model_named

__all__ = ["model_workload"]

Model = str | ModelSpec | ModelLayers


def model_workload(
    model: Model,
    *,
    batch: int,
    sequence: int = 4096,
    recompute: RecomputeChoice = "all",
    state: TrainingState | None = None,
    options: Mapping[str, Any] | None = None,
) -> ModelWorkload:
    """A model at no fixed degrees; see ``ap.Workload.from_model`` for the arguments."""
    if type(sequence) is not int or sequence < 1:
        raise CostError(f"sequence={sequence!r}: give the number of tokens, 1 or more")
    spec = model_named(model) if isinstance(model, str) else model
    if not isinstance(spec, (ModelSpec, ModelLayers)):
        raise CostError(f"model is {model!r}: give a name, an annopipe.ModelSpec or annopipe.ModelLayers")
    return ModelWorkload(
        _Pricer(spec, sequence, recompute, options or {}),
        batch,
        experts=spec.experts if isinstance(spec, ModelSpec) else 0,
        state=state or TrainingState(),
        microbatch_size=spec.sequences if isinstance(spec, ModelLayers) else None,
        name=spec.name,
    )


class _Pricer:
    """Prices a model for a number of ranks that share experts and a size of microbatch; what it has found is kept."""

    def __init__(
        self, spec: ModelSpec | ModelLayers, sequence: int, recompute: RecomputeChoice, options: Mapping[str, Any]
    ) -> None:
        self._spec, self._sequence, self._recompute, self._options = spec, sequence, recompute, options
        self._found: dict[tuple[str, int, int], PricedModel] = {}
        self._layers: dict[str, Known] = {}  # by hardware: only those with experts depend on the ranks that share them

    def __call__(self, hardware: Hardware, expert: int, sequences: int) -> PricedModel:
        machine = repr(dataclasses.astuple(hardware))
        key = machine, expert, sequences
        if key not in self._found:
            self._found[key] = self._priced(hardware, expert, sequences, self._layers.setdefault(machine, {}))
        return self._found[key]

    def _priced(self, hardware: Hardware, expert: int, sequences: int, known: Known) -> PricedModel:
        with contextlib.ExitStack() as stack:
            if isinstance(self._spec, ModelLayers):
                layers = self._spec
            else:
                group = stack.enter_context(absent_group(expert)) if expert > 1 else None
                with without_memory():
                    layers = self._spec.build(group, sequences, self._sequence)
            return priced(layers, hardware, recompute=self._recompute, options=self._options, known=known)
