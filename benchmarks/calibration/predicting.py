"""What a step should take, from the graphs that run: their plans at calibrated costs, under a config's schedule."""

import torch.distributed as dist

import annopipe as ap
from benchmarks.calibration.plan import Measured
from benchmarks.moe.case import MoeCase
from benchmarks.moe.model import STRETCHES, blocks_module, example_input, mean_square
from benchmarks.moe.pacing import Paces

__all__ = ["Planner", "paces"]


def paces(case: MoeCase, measured: Measured) -> Paces:
    """Costs of nodes: a stretch as measured inside the second block, transfers by the line of the calibration."""
    block = measured.layers[1]
    transfer_s = max(0.0, measured.exchange.seconds(case.transfer_bytes) - measured.issue_s)
    return Paces(
        stretch_s=block.work / STRETCHES,
        transfer_s=transfer_s,
        asked_s=measured.stretch_s,
        transfer_rows=2 * case.rows * case.top_k,
        latency_s=min(measured.exchange.latency_s, transfer_s),
        issue_s=measured.issue_s,
        in_flight=measured.in_flight,
    )


class Planner:
    """Simulates configs; stages that several of them have are traced once."""

    def __init__(self, case: MoeCase, measured: Measured, experts: dist.ProcessGroup) -> None:
        self._case, self._measured, self._experts = case, measured, experts
        self._costs = paces(case, measured).costs
        self._traced: dict[tuple[int, bool, bool], ap.StageGraphs] = {}

    def seconds(self, config: ap.RunConfig) -> float:
        """The makespan of a step."""
        graphs = {stage: self._graphs(start, end) for stage, (start, end) in enumerate(config.layers)}
        send = self._measured.send
        costs = ap.costs.actions(graphs, self._costs, link_bytes_per_s=send.bandwidth, latency=send.latency_s)
        return config.schedule.simulated(costs).makespan

    def _graphs(self, start: int, end: int) -> ap.StageGraphs:
        is_first, is_last = start == 0, end == self._case.blocks
        key = end - start, is_first, is_last
        if key not in self._traced:
            module = blocks_module(self._case, range(start, end), self._measured.stretch_s, self._experts)
            x = example_input(self._case).requires_grad_(not is_first)
            loss, target = (mean_square, example_input(self._case)) if is_last else (None, None)
            self._traced[key] = ap.trace(module, (x,), loss_fn=loss, target=target)
        return self._traced[key]
