"""Computation that is waiting: operators that take a known time forward, for the input's gradient and for the weight's.

They trace into graphs, split into backward-input and backward-weight, and run eagerly, so that every runtime is paced
in the same way. Results and gradients are real, those of adding a weight to every row.

    computed(x, weight, t)      forward: t.   backward: t for the input's gradient, and t for the weight's
"""

import dataclasses
import time
from typing import Any, cast

import torch
from torch import Tensor, fx

from annopipe.costs import NodeCosts
from annopipe.graphs import meta
from annopipe.graphs.declared_ops import register_pure
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.simulation import Network
from benchmarks.waiting import wait_until

__all__ = ["Paces", "computed"]


def computed(x: Tensor, weight: Tensor, seconds: float) -> Tensor:
    """``x + weight``, in as many seconds.

    >>> with torch.no_grad():
    ...     computed(torch.ones(1, 2), torch.ones(2), 0.001).tolist()
    [[2.0, 2.0]]
    """
    return cast(Tensor, _pace(x, seconds) + _late(weight, seconds))


@dataclasses.dataclass(frozen=True)
class Paces:
    """What was measured of a paced model: a stretch of computation, and a transfer, of a whole microbatch.

    asked_s: what a stretch asked for.  transfer_rows: how many rows this rank sent and got in a transfer.
    latency_s: the part of a transfer that does not depend on how many.  issue_s: what the thread spends to start one,
    beside that.
    in_flight: how many transfers of a group share its link.
    """

    stretch_s: float
    transfer_s: float
    asked_s: float = 0.0
    transfer_rows: int = 0
    latency_s: float = 0.0
    issue_s: float = 0.0
    in_flight: int = 1

    def costs(self, graph: StageGraph) -> NodeCosts:
        """What the nodes of a graph take: stretches and transfers by their share of a microbatch, others no time."""
        place(graph)
        seconds: dict[str, float] = {}
        latency: dict[str, float] = {}
        issue: dict[str, float] = {}
        for node in body(graph.graph):
            at = meta.placed(node)
            seconds[at.key] = 0.0
            if node.target is _PACE:
                asked = cast(float, node.args[1])
                seconds[at.key] = self.stretch_s * (asked / self.asked_s if self.asked_s else 1.0)
            if at.kind == "launch":
                moved = meta.value(node).shape[0] + meta.value(cast(fx.Node, node.args[0])).shape[0]
                share = moved / self.transfer_rows if self.transfer_rows else 1.0
                seconds[at.key] = self.latency_s + (self.transfer_s - self.latency_s) * share
                latency[at.key], issue[at.key] = self.latency_s, self.issue_s
        return NodeCosts(seconds, latency, issue, Network(in_flight=self.in_flight), source="paced")


@torch.library.custom_op("annopipe_bench::pace", mutates_args=())
def _pace(x: Tensor, seconds: float) -> Tensor:
    """A copy, later."""
    moment = time.perf_counter() + seconds
    result = x.clone()
    wait_until(moment)
    return result


@torch.library.custom_op("annopipe_bench::late", mutates_args=())
def _late(weight: Tensor, seconds: float) -> Tensor:  # noqa: ARG001 - for the backward
    """A copy whose gradient takes a while."""
    return weight.clone()


def _fake(x: Tensor, seconds: float) -> Tensor:  # noqa: ARG001 - the operators' signature
    return torch.empty_like(x)


def _keep_seconds(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch.library gives all
    ctx.seconds = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _pace(gradient.contiguous(), ctx.seconds), None


for _operator in (_pace, _late):
    _operator.register_fake(_fake)
    _operator.register_autograd(_backward, setup_context=_keep_seconds)
    register_pure(_operator)
_PACE = torch.ops.annopipe_bench.pace.default
