"""What a step should take: the schedule simulated with the costs of its actions, from the graphs of its stages."""

from typing import Any

import torch
from torch import nn

import annopipe as ap
from annopipe.ordering.combining import StageNodeCosts
from benchmarks.moe.case import MoeCase
from benchmarks.moe.groups import Groups
from benchmarks.moe.model import example_input, mean_square, stage_module

__all__ = ["Predictor"]


class Predictor:
    """Traces the first, a middle and the last stage of a pipeline, and simulates.

    Args:
        seconds: what one stretch of paced computation takes.
        hand_over_s: what a message between stages takes.
        skew: of the routing.
    """

    def __init__(self, case: MoeCase, groups: Groups, seconds: float, hand_over_s: float, skew: float = 1.0) -> None:
        self._case, self._groups, self._skew = case, groups, skew
        self._seconds, self._hand_over_s = seconds, hand_over_s
        self._costs: dict[tuple[int, bool], ap.NodeCosts] = {}  # by the identity of a stage's graphs, which are kept
        self._traced: dict[tuple[int, bool, bool], tuple[ap.StageGraphs, nn.Module]] = {}
        self._actions: dict[tuple[int, str, bool], ap.ActionCosts] = {}  # by the number of stages, policy, compiled

    def graphs(self, schedule: ap.Schedule) -> dict[int, ap.StageGraphs]:
        """The graphs of all stages; middle ones are alike."""
        return {stage: found for stage, (found, _) in self._stages(schedule).items()}

    def action_costs(
        self, schedule: ap.Schedule, costs: StageNodeCosts, policy: str, *, compiled: bool = False
    ) -> ap.ActionCosts:
        """What the actions of a schedule take; the same costs have to be given for the same number of stages."""
        key = schedule.placement.stages, policy, compiled
        if key not in self._actions:
            graphs = self.graphs(schedule)
            self._actions[key] = ap.costs.actions(graphs, costs, policy, latency=self._hand_over_s)
        return self._actions[key]

    def measured(self, schedule: ap.Schedule, *, compiled: bool = False) -> dict[int, ap.NodeCosts]:
        """Node costs of every stage by measurement, once for stages that are alike; all ranks measure together."""
        x = example_input(self._case)
        stages = self._stages(schedule)
        for graphs, module in stages.values():
            if (id(graphs), compiled) not in self._costs:
                self._costs[id(graphs), compiled] = _measured(graphs, module, x, self._groups, compiled=compiled)
        return {stage: self._costs[id(graphs), compiled] for stage, (graphs, _) in stages.items()}

    def _stages(self, schedule: ap.Schedule) -> dict[int, tuple[ap.StageGraphs, nn.Module]]:
        count = schedule.placement.stages
        blocks = self._case.layers * self._case.pipeline_ranks // count
        return {
            stage: self._of(blocks, is_first=stage == 0, is_last=stage == count - 1, stage=stage)
            for stage in range(count)
        }

    def _of(self, blocks: int, *, is_first: bool, is_last: bool, stage: int) -> tuple[ap.StageGraphs, nn.Module]:
        key = blocks, is_first, is_last
        if key not in self._traced:
            module = stage_module(self._case, blocks, stage, self._seconds, self._groups.experts, self._skew)
            x = example_input(self._case).requires_grad_(not is_first)
            loss, target = (mean_square, example_input(self._case)) if is_last else (None, None)
            self._traced[key] = ap.trace(module, (x,), loss_fn=loss, target=target), module
        return self._traced[key]


def _measured(
    graphs: ap.StageGraphs, module: nn.Module, x: torch.Tensor, groups: Groups, *, compiled: bool
) -> ap.NodeCosts:
    targets: dict[str, Any] = {"target": x} if graphs.layout.has_loss else {}
    values = {**graphs.bind(module), **graphs.bind_inputs(x, **targets)}
    forward, *backward = (
        ap.compile_graph(graph) if compiled else graph
        for graph in (graphs.forward, graphs.backward)
        if graph is not None
    )
    costs = ap.costs.measure(forward, values, groups.experts).in_lane("F")
    for graph in backward:
        values |= forward(values)
        for port in graph.inputs:
            if port.role == "tangent":
                values[port.name] = torch.ones([int(extent) for extent in port.shape], dtype=port.dtype)
        costs |= ap.costs.measure(graph, values, groups.experts).in_lane("B")
    return costs
