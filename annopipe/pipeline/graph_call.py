"""Call a stage graph, or several as one combined graph, on the values of microbatches, with little overhead."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph
from annopipe.pipeline.profiling import is_profiled, with_ranges

__all__ = ["GraphCall"]


class GraphCall:
    """One graph, ready to be called with one mapping of values per lane.

    Shapes are not looked at: they were agreed on when the pipeline was prepared.
    """

    def __init__(self, graph: StageGraph, lanes: Sequence[str] = ()) -> None:
        # Not the module, which prints what fails and forgets the line; nobody can have put a hook on it.
        self._forward = graph.module.forward
        self._graph = graph
        self._inputs = [_split(port, lanes) for port in graph.inputs]
        self._outputs = [_split(port, lanes) for port in graph.outputs]
        self._lanes = max(1, len(lanes))
        self._devices = sorted({port.device for port in graph.inputs if port.device not in ("", "meta")})

    def __call__(self, *values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The results, by port name, one dictionary per lane."""
        given = [values[lane][name] for lane, name in self._inputs]
        with torch.no_grad():
            if any(map(torch.is_autocast_enabled, self._devices)):
                found = self._without_autocast(given)
            else:
                found = self._now(*given)
        results: list[dict[str, Any]] = [{} for _ in range(self._lanes)]
        for (lane, name), value in zip(self._outputs, found, strict=True):
            results[lane][name] = value
        return results

    def _without_autocast(self, given: Sequence[Any]) -> Any:
        """Casts are nodes of the graph."""
        with contextlib.ExitStack() as stack:
            for device in self._devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            return self._now(*given)

    @property
    def _now(self) -> Callable[..., Any]:
        return self._with_ranges if is_profiled() else self._forward

    @functools.cached_property
    def _with_ranges(self) -> Callable[..., Any]:
        run: Callable[..., Any] = with_ranges(self._graph).forward
        return run


def _split(port: Port, lanes: Sequence[str]) -> tuple[int, str]:
    lane, _, name = port.name.partition(".")
    return (lanes.index(lane), name) if lane in lanes else (0, port.name)
