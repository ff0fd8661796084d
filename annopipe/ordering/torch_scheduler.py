"""Adapter to PyTorch's overlap scheduler, private in ``torch._inductor``: an order of a problem by its rules.

The scheduler reads an FX graph, so it gets a stand-in of the problem: a matrix product for each computation that takes
a notable time (these are what it hides transfers behind), an addition for what takes less, an all-to-all and its wait
for a transfer, all on tensors without memory, with the problem's costs as runtime estimates.

Source: ``torch/_inductor/fx_passes/overlap_scheduling.py`` (``OverlapScheduler``). Its limits on memory are switched
off, since a problem knows no sizes, and so is its agreement between ranks, which ``overlap`` brings about itself.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._inductor.fx_passes import overlap_scheduling

from annopipe.ordering.problem import OverlapProblem

__all__ = ["scheduled"]

_NOTABLE = 0.25  # of the mean cost of what costs anything
_WITHOUT_LIMIT = 1_000_000


def scheduled(problem: OverlapProblem) -> list[int]:
    """The order that PyTorch's scheduler gives the nodes of ``problem``.

    Raises:
        AttributeError, TypeError: this PyTorch's scheduler is another than the one known here.
    """
    graph, stands_for = _stand_in(problem)
    costs_ms = {node: problem.nodes[index].cost * 1e3 for node, index in stands_for.items()}
    with _no_question_to_a_gpu():
        scheduler = _AloneScheduler(
            fx.GraphModule(torch.nn.Module(), graph),
            max_in_flight_gb=_WITHOUT_LIMIT,
            max_compute_pre_fetch=_WITHOUT_LIMIT,
            collective_bucketing=False,
            insert_overlap_deps=False,
            compute_overlap_multipler=1.0,
            max_coll_distance=_WITHOUT_LIMIT,
            custom_runtime_estimation=lambda node, _size: costs_ms.get(node, 0.0),
            collective_estimator="analytical",
            max_memory_increase_gb=_WITHOUT_LIMIT,
            max_memory_increase_ratio=None,
            **_without_measurements(),
        )
    scheduler.run()
    rank = [0.0] * len(problem.nodes)
    for place, node in enumerate(scheduler.scheduled):
        if node in stands_for:
            rank[stands_for[node]] = float(place)
    return problem.topological(rank)


def _no_time(node: fx.Node) -> float:  # noqa: ARG001 - the scheduler's own name for it
    return 0.0


def _without_measurements() -> dict[str, Any]:
    """Later than PyTorch 2.11, the scheduler measures computation unless it is told not to."""
    known = inspect.signature(overlap_scheduling.OverlapScheduler).parameters
    return {"compute_estimator": "analytical"} if "compute_estimator" in known else {}


@contextlib.contextmanager
def _no_question_to_a_gpu() -> Iterator[None]:
    """The scheduler asks a GPU for its bandwidth even where it then takes the estimate that it is given.

    PyTorch 2.11 does not: there only what has no estimate is asked for.
    """
    asked = getattr(overlap_scheduling, "estimate_roofline_runtime_ms", None)
    if asked is None:
        yield
        return
    overlap_scheduling.estimate_roofline_runtime_ms = _no_time
    try:
        yield
    finally:
        overlap_scheduling.estimate_roofline_runtime_ms = asked


class _AloneScheduler(overlap_scheduling.OverlapScheduler):
    def _align_compute_nodes_runtime_estimations_across_all_distributed_ranks(self) -> None:
        """Nothing: the ranks agree on one order afterwards."""


def _stand_in(problem: OverlapProblem) -> tuple[fx.Graph, dict[fx.Node, int]]:
    """A graph with the problem's dependencies, and which node each of its nodes stands for."""
    graph = fx.Graph()
    value = torch.empty(1, 1, device="meta")
    start = graph.placeholder("start")
    start.meta["val"] = value
    paid = [node.cost for node in problem.nodes if node.cost and node.kind in ("compute", "host")]
    notable = _NOTABLE * sum(paid) / max(1, len(paid))
    made: list[fx.Node] = []

    def call(target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = value
        return node

    for node, earlier in zip(problem.nodes, problem.dependencies, strict=True):
        if node.kind == "wait":  # what else it comes after cannot be said here
            made.append(call(torch.ops._c10d_functional.wait_tensor.default, made[node.launch]))
            continue
        before = [made[index] for index in earlier] or [start]
        joined = before[0] if len(before) == 1 else call(torch.ops.aten.cat.default, before)
        if node.kind == "launch":
            made.append(call(torch.ops._c10d_functional.all_to_all_single.default, joined, [1], [1], node.queue))
        elif node.cost > notable:
            made.append(call(torch.ops.aten.mm.default, joined, joined))
        else:
            made.append(call(torch.ops.aten.add.Tensor, joined, joined))
    graph.output(tuple(made))
    return graph, {node: index for index, node in enumerate(made)}
