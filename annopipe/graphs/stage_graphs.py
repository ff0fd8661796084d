"""StageGraphs: all graphs of one traced stage, and how a module's values reach their ports and come back."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from annopipe import pytrees
from annopipe.errors import CaptureError, GraphError
from annopipe.graphs.arguments import TARGET, Arguments, Guard, flatten_arguments
from annopipe.graphs.backward_split import split_backward
from annopipe.graphs.ports import Port
from annopipe.graphs.source_guards import SourceGuards
from annopipe.graphs.stage_graph import StageGraph

__all__ = ["AUXILIARY_LOSS", "LOSS", "OutputLayout", "StageGraphs"]

# What the ports of the two scalars are called: of loss_fn, and of the sum of what forward gave to ``auxiliary_loss``.
LOSS, AUXILIARY_LOSS = "loss", "auxiliary_loss"


@dataclasses.dataclass(frozen=True)
class OutputLayout:
    """How a module's result is put together from output ports and constants.

    losses: those of LOSS and AUXILIARY_LOSS that are outputs too, before all others.
    """

    paths: tuple[str, ...]
    tensors: tuple[str, ...]
    constants: tuple[Guard, ...]
    spec: pytrees.TreeSpec
    losses: tuple[str, ...] = ()

    @property
    def has_loss(self) -> bool:
        """Whether the graph computes ``loss_fn``."""
        return LOSS in self.losses


@dataclasses.dataclass(frozen=True)
class StageGraphs:
    """The graphs of one stage.

    forward: parameters, buffers and inputs to outputs, saved values and buffer updates.
    backward: saved values and tangents to gradients; None when nothing requires grad.
    backward_input, backward_weight: the two halves of backward, split at first use.
    unshard, reduce_grad: None, since no parameter of this stage is sharded.
    modes, frozen: the module's training modes and frozen parameters, by name, when it was traced.
    sources: the Python values that strict tracing found in the module and around it, and that have to stay the same.
    default_dtype: torch's when the module was traced.
    """

    forward: StageGraph
    backward: StageGraph | None
    arguments: Arguments
    target_arguments: Arguments
    layout: OutputLayout
    modes: Mapping[str, bool]
    frozen: frozenset[str]
    canonical: Mapping[str, str] = dataclasses.field(default_factory=dict)  # names of tied tensors to the first one
    sources: SourceGuards = dataclasses.field(default_factory=SourceGuards)
    unshard: StageGraph | None = None
    reduce_grad: StageGraph | None = None
    default_dtype: torch.dtype = dataclasses.field(default_factory=torch.get_default_dtype)

    @functools.cached_property
    def _halves(self) -> tuple[StageGraph, StageGraph] | None:
        return None if self.backward is None else split_backward(self.backward)

    @property
    def backward_input(self) -> StageGraph | None:
        """The part of backward that input gradients and collectives need; it saves what backward_weight takes."""
        return self._halves[0] if self._halves else None

    @property
    def backward_weight(self) -> StageGraph | None:
        """The rest of backward: parameter gradients that can wait."""
        return self._halves[1] if self._halves else None

    def of_kind(self, kind: str) -> StageGraph | None:
        """The graph of an action: F, B, I or W; None when nothing is differentiated."""
        if kind == "F":
            return self.forward
        if kind == "B":
            return self.backward
        if kind not in ("I", "W"):
            raise GraphError(f"a stage has no graph {kind!r}; it has F, B, I and W")
        return self.backward_input if kind == "I" else self.backward_weight

    def bind(self, module: nn.Module) -> dict[str, Any]:
        """Values for the parameter and buffer ports, by port name.

        Raises:
            GraphError: the module lacks one, or it has another shape or dtype than the traced module's.
            CaptureError: a training mode, torch's default dtype or a guarded Python value has changed since, or a
                parameter requires grad now.
        """
        self._check_modes(module)
        self.sources.check({"self": module})
        parameters = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers(remove_duplicate=False))
        values: dict[str, Any] = {}
        for port in self.bound_ports():
            name, tensors = port.name.partition(".")[2], parameters if port.role == "param" else buffers
            if name not in tensors:
                raise GraphError(
                    f"{type(module).__name__} has no {port.role} {name!r}, which the graphs were traced with"
                )
            if reason := port.mismatch(tensors[name]):
                raise GraphError(f"{port.role} {name}: {reason}; trace this module again")
            values[port.name] = tensors[name]
        self._check_tying({**buffers, **parameters})
        return values

    def bound_ports(self) -> list[Port]:
        """The parameter and buffer ports of the forward and the backward, once each: "param.weight"."""
        graphs = [self.forward, *([self.backward] if self.backward else [])]
        ports = {port.name: port for graph in graphs for port in graph.inputs if port.role in ("param", "buffer")}
        return list(ports.values())

    def bind_inputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Values for the input ports from a call like the traced one, with ``target=...`` where a loss was traced.

        Raises:
            CaptureError: a constant differs from the traced one, or the arguments have another structure, or a guarded
                global or closure variable has changed since.
        """
        targets = {TARGET: kwargs.pop(TARGET, None)} if self.layout.has_loss else {}
        tensors: dict[str, torch.Tensor] = {}
        calls = []
        for traced, positional, named in ((self.arguments, args, kwargs), (self.target_arguments, (), targets)):
            given = flatten_arguments(traced.signature, "the traced call", positional, named)
            tensors |= traced.matched(given)
            calls.append(given.rebuild(dict(zip(given.paths, given.tensors, strict=True))))
        self.sources.check({"args": calls[0].args, "kwargs": calls[0].kwargs, "target": calls[1].args})
        return {f"input.{path}": tensor for path, tensor in tensors.items()}

    def result(self, values: Mapping[str, Any]) -> Any:
        """What the module's forward would have returned, put together from the output ports."""
        constants = {guard.path: guard.value for guard in self.layout.constants}
        leaves = [values[path] if path in self.layout.tensors else constants[path] for path in self.layout.paths]
        return pytrees.tree_unflatten(leaves, self.layout.spec)

    def write_buffers(self, module: nn.Module, values: Mapping[str, Any]) -> None:
        """Write the buffer updates of one run of the forward graph into the module: once for every run.

        Raises:
            GraphError: the module lacks one of the buffers.
        """
        buffers = dict(module.named_buffers(remove_duplicate=False))
        with torch.no_grad():
            for port in self.forward.outputs:
                if port.role == "buffer_update":
                    if port.source not in buffers:
                        raise GraphError(f"{type(module).__name__} has no buffer {port.source!r} to update")
                    buffers[port.source].copy_(_of(values, port))

    def parameter_gradients(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Gradients by canonical parameter name; those of tied weights are added up."""
        gradients: dict[str, torch.Tensor] = {}
        for port in self.backward.outputs if self.backward else ():
            if port.role == "param_grad":
                have, more = gradients.get(port.source), _of(values, port)
                gradients[port.source] = more if have is None else have + more
        return gradients

    def _check_tying(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Which names are one tensor decides which gradients are added up."""
        first: dict[str, int] = {}
        for name in self.canonical.keys() & tensors.keys():
            first.setdefault(self.canonical[name], id(tensors[name]))
        owners = {tensor: name for name, tensor in first.items()}
        for name, source in self.canonical.items():
            if name in tensors and (first[source] != id(tensors[name]) or owners[id(tensors[name])] != source):
                raise CaptureError(f"{name} is tied to others in another way than when traced: trace again")

    def _check_modes(self, module: nn.Module) -> None:
        if self.default_dtype != torch.get_default_dtype():
            raise CaptureError(
                f"torch's default dtype was {self.default_dtype} when the module was traced and is "
                f"{torch.get_default_dtype()} now: set it back, or trace again"
            )
        for name, child in module.named_modules():
            if child.training != self.modes.get(name, child.training):
                mode = "training" if child.training else "evaluation"
                raise CaptureError(f"{name or 'the module'} is in {mode} mode now and was not when traced: trace again")
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and name in self.frozen:
                raise CaptureError(f"parameter {name} requires grad now and did not when traced: trace again")


def _of(values: Mapping[str, Any], port: Port) -> Any:
    if port.name not in values:
        raise GraphError(
            f"no value for {port.name}: pass the result of the graph; of a multiplexed graph take one lane's part with "
            'ap.out_of_lane(result, "F")'
        )
    return values[port.name]
