"""From the modules of a model to what its layers take and keep: each traced without memory, and priced by roofline."""

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from annopipe.costs.hardware import Hardware
from annopipe.costs.roofline_model import roofline
from annopipe.costs.stored import StoredBytes, stored_bytes
from annopipe.errors import CostError
from annopipe.graphs import meta
from annopipe.graphs.capture import without_values
from annopipe.graphs.recompute_choice import Recompute as RecomputeGiven
from annopipe.graphs.recompute_choice import matching, recompute_choice, region_paths
from annopipe.graphs.stage_graph import StageGraph, output_nodes
from annopipe.graphs.stage_graphs import LOSS, StageGraphs
from annopipe.graphs.tracing import trace
from annopipe.pytrees import tree_flatten, tree_leaves
from annopipe.tuning.layers import Recompute
from annopipe.tuning.priced import Parameters, PricedLayer, PricedModel
from annopipe.workloads.model_layers import ModelLayers, described, identity
from annopipe.workloads.pieces import Price, pieces_of

__all__ = ["Known", "KnownLayer", "priced"]

Loss = Callable[[Any, Any], torch.Tensor] | None
Stored = Callable[[StageGraphs], StoredBytes]


@dataclass(frozen=True)
class KnownLayer:
    """A layer that was priced.

    Attributes:
        module: kept, so that no other object gets its identity.
        layer, outputs, regions: its price, what it hands on, where its forward runs.
    """

    module: nn.Module
    layer: PricedLayer
    outputs: tuple[Any, ...]
    regions: tuple[str, ...]


Known = dict[Hashable, KnownLayer]


def priced(
    model: ModelLayers,
    hardware: Hardware,
    *,
    recompute: RecomputeGiven = "all",
    options: Mapping[str, Any] | None = None,
    known: Known | None = None,
) -> PricedModel:
    """What the layers of a model take on some hardware, and keep.

    Layers that are alike are traced once. Each is traced on its own, so that the search may put it into any stage.

    Args:
        model: the layers, of which tensors need no memory: see ``ModelLayers``.
        hardware: of one rank, and the links around it.
        recompute: what layers can compute again, as in ``ap.trace``; None: nothing.
        options: arguments of ``ap.costs.roofline``, beside graph and hardware; ``fused`` is True if left out.
        known: layers that were priced with the same arguments before; what is new is added.

    Raises CostError for a layer whose output's size depends on data, or that cannot be priced; CaptureError for one
    that cannot be traced.

    >>> from annopipe.costs.machines import machine
    >>> found = priced(ModelLayers([nn.Linear(8, 8)] * 3, inputs=(torch.ones(4, 8),)), machine("h100"))
    >>> len(found.layers), found.layers[1].shared.elements, found.layers[1].output_bytes
    (3, 72, 128.0)
    """
    _check_options(options)
    chosen = {"fused": True, **(options or {})}
    price = functools.partial(roofline, hardware=hardware, **chosen)
    stored = functools.partial(stored_bytes, skew=chosen.get("skew", 1.0))
    tracer = _Tracer(model.is_expert, price, stored, recompute, {} if known is None else known)
    towers: list[tuple[PricedLayer, ...]] = []
    handed: tuple[Any, ...] = ()
    for tower, inputs in zip(model.towers, model.tower_inputs, strict=True):
        layers, made = tracer.chain(tower, inputs)
        towers.append(layers)
        handed += made
    first = without_values(handed, _tensors(model.layers[0])) if towers else model.inputs
    layers, _ = tracer.chain(model.layers, first, model.loss_fn, model.target)
    tracer.check_regions()
    return PricedModel(layers, tuple(towers), model.batch_wide)


def _check_options(options: Mapping[str, Any] | None) -> None:
    if options is not None and not isinstance(options, Mapping):
        raise CostError(f"options is {options!r}: give arguments of ap.costs.roofline, by name")
    known = [name for name in inspect.signature(roofline).parameters if name not in ("graph", "hardware")]
    if unknown := sorted(set(options or ()) - set(known)):
        raise CostError(f"options has {unknown[0]!r}: give other arguments of ap.costs.roofline: {', '.join(known)}")


class _Tracer:
    """Traces and prices layers, each kind of them once."""

    def __init__(
        self, is_expert: Callable[[str], bool], price: Price, stored: Stored, recompute: RecomputeGiven, known: Known
    ) -> None:
        self._is_expert, self._price, self._stored, self._known = is_expert, price, stored, known
        self._recompute = None if recompute is None else replace(recompute_choice(recompute), absent=True)
        self._regions: list[str] = []

    def chain(
        self, modules: Sequence[nn.Module], inputs: tuple[Any, ...], loss_fn: Loss = None, target: Any = None
    ) -> tuple[tuple[PricedLayer, ...], tuple[Any, ...]]:
        """The layers of a chain, and what its last one hands on."""
        found: list[PricedLayer] = []
        for index, module in enumerate(modules):
            given = without_values(inputs, _tensors(module)) if found else inputs
            with_loss = loss_fn is not None and index == len(modules) - 1
            leaves, nesting = tree_flatten(given)
            key = identity(module), with_loss, nesting, tuple(map(described, leaves))
            if key not in self._known:
                self._known[key] = self._traced(module, given, *((loss_fn, target) if with_loss else (None, None)))
            layer, inputs = self._known[key].layer, self._known[key].outputs
            self._regions += self._known[key].regions
            found.append(layer)
        return tuple(found), inputs

    def check_regions(self) -> None:
        """Refuse the name of a region to compute again that no layer has."""
        for name in () if self._recompute is None else self._recompute.regions:
            if not matching(self._regions, name):
                have = ", ".join(dict.fromkeys(self._regions)) or "none: tag the forward with ap.region"
                raise CostError(f"recompute: no layer runs in a region {name!r}; there are {have}")

    def _traced(self, module: nn.Module, inputs: tuple[Any, ...], loss_fn: Loss, target: Any) -> KnownLayer:
        price = functools.cache(self._price)
        graphs = trace(module, inputs, loss_fn=loss_fn, target=target)
        outputs = _handed_on(graphs, type(module).__name__)
        pieces, stored, again = pieces_of(graphs, price), self._stored(graphs), None
        if self._recompute is not None and graphs.backward is not None:
            others = trace(module, inputs, loss_fn=loss_fn, target=target, recompute=self._recompute)
            changed, kept = pieces_of(others, price), self._stored(others)
            saves, costs = stored.activation - kept.activation, sum(changed.times[1:]) - sum(pieces.times[1:])
            if saves > 0:
                again = Recompute(saves, max(0.0, costs), changed.backward, kept.kept_for_weight)
        shared, experts = self._parameters(module)
        handed = float(sum(value.numel() * value.element_size() for value in _tensors_in(outputs)))
        layer = PricedLayer(pieces, stored.activation, stored.kept_for_weight, again, shared, experts, handed)
        return KnownLayer(module, layer, outputs, region_paths(graphs.forward))

    def _parameters(self, module: nn.Module) -> tuple[Parameters, Parameters]:
        counts = {False: [0, 0], True: [0, 0]}
        for name, parameter in module.named_parameters():
            found = counts[self._is_expert(name)]
            found[0] += parameter.numel() if parameter.requires_grad else 0
            found[1] += parameter.numel() * parameter.element_size()
        return Parameters(*counts[False]), Parameters(*counts[True])


def _handed_on(graphs: StageGraphs, name: str) -> tuple[Any, ...]:
    """What the layer returns, or its loss, as arguments of the next layer; tensors are fake."""
    values = _fake_outputs(graphs.forward)
    for value in values.values():
        if not all(isinstance(extent, int) for extent in value.shape):
            raise CostError(
                f"{name} returns a tensor of shape {tuple(value.shape)}, which depends on data: hand on what has the "
                "same size in every microbatch"
            )
    if graphs.layout.has_loss:
        return (values[LOSS],)
    returned = graphs.result(values)
    return returned if isinstance(returned, tuple) else (returned,)


def _fake_outputs(forward: StageGraph) -> dict[str, torch.Tensor]:
    found = zip(forward.outputs, output_nodes(forward.graph), strict=True)
    return {port.name: meta.value(node) for port, node in found if port.role in ("output", "loss")}


def _tensors_in(values: tuple[Any, ...]) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
