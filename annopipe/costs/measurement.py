"""Measured node costs: run a graph node by node on real values, and time each node and each transfer.

Computation is timed in program order, in the graph's own run; a transfer is timed on its own, launch to wait, with
its real arguments, several times in a row, after all ranks have met. Medians; the first rounds warm up and do not
count.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from annopipe.costs.completion import Completion, declared_waits, made_of
from annopipe.costs.node_costs import NodeCosts
from annopipe.errors import CostError
from annopipe.graphs import meta
from annopipe.graphs.ops import group_name, launch_of, traits
from annopipe.graphs.process_groups import group_by_name, is_distributed
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes
from annopipe.pytrees import tree_map_only

__all__ = ["LaunchCall", "measure", "record_launches", "wait_for"]


@dataclasses.dataclass(frozen=True)
class LaunchCall:
    """A collective with the arguments that a run gave it, so that it can be repeated.

    completion: waits for the launch's result; ``wait_for`` if it is None.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    queue: str
    completion: Callable[[Any], None] | None = None

    def launch(self) -> Any:
        """Start the transfer; the result must be waited for."""
        return self.target(*self.args, **self.kwargs)

    def wait(self, launched: Any) -> None:
        """Wait for what ``launch`` returned."""
        (self.completion or wait_for)(launched)

    def run(self) -> None:
        """Start the transfer and wait for it."""
        self.wait(self.launch())


def measure(
    graph: StageGraph,
    values: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
    *,
    repeat: int = 5,
    warmup: int = 2,
) -> NodeCosts:
    """Measure the cost of every node of ``graph`` on real values.

    Of a compiled graph, the costs are those of the nodes of the graph that was compiled, so that they order and predict
    it: what a stretch takes is shared out evenly among its nodes.

    Args:
        graph: any stage graph, combined or not, compiled or not.
        values: a value for every input port, by name.
        group: ranks that measure together and share the result: the mean of their computation, the longest of their
            transfers. All ranks of every process group in the graph call this at the same time.
        repeat: rounds that count.
        warmup: rounds before them.

    Raises:
        CostError: ``repeat`` is not positive. GraphError: a port has no value.
    """
    if repeat < 1 or warmup < 0:
        raise CostError(f"measure(repeat={repeat}, warmup={warmup}): measure at least once")
    place(graph)
    samples: dict[str, list[float]] = {}
    with torch.random.fork_rng():  # measuring draws no numbers that a run would have drawn
        for round_number in range(warmup + repeat):
            run = _NodeRun(graph, values)
            for key, seconds in run.seconds.items():
                if round_number >= warmup:
                    samples.setdefault(key, []).append(seconds)
        calls = record_launches(graph, values)
    medians = {key: statistics.median(times) for key, times in samples.items()}
    timed = {key: _transfer_seconds(call, repeat, warmup) for key, call in calls.items()}
    by_queue = {call.queue: call for call in calls.values()}
    smallest = {queue: _latency_seconds(call, repeat, warmup) for queue, call in sorted(by_queue.items())}
    transfers = {key: transfer for key, (_, transfer) in timed.items()}
    latency = {key: min(transfers[key], smallest[call.queue]) for key, call in calls.items()}
    issue = {key: issued for key, (issued, _) in timed.items()}
    costs = NodeCosts({**medians, **transfers}, latency, issue, source="measured")
    return costs if group is None else _shared(costs, group)


def record_launches(graph: StageGraph, values: Mapping[str, Any]) -> dict[str, LaunchCall]:
    """The collectives of one run of ``graph``, by node key, with the arguments they got."""
    return _NodeRun(graph, values).calls


def wait_for(launched: Any) -> None:
    """Wait with PyTorch's own operator for a launch's result: one tensor, or several."""
    tree_map_only(torch.Tensor, torch.ops._c10d_functional.wait_tensor, launched)


class _NodeRun:
    """One run of a graph, node by node, that keeps times and launches."""

    def __init__(self, graph: StageGraph, values: Mapping[str, Any]) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, LaunchCall] = {}
        self._values: dict[fx.Node, Any] = dict(zip(input_nodes(graph.graph), graph.arguments(values), strict=True))
        self._attributes = graph.attributes
        self._synchronise = _synchroniser(self._values.values())
        last_use = _last_uses(graph.graph)
        self._waits = declared_waits(graph.graph)
        held = {source for waits in self._waits.values() for node in made_of(waits) for source in node.all_input_nodes}
        with torch.no_grad():
            for node in body(graph.graph):
                self._run(node)
                for done in last_use.get(node, ()):
                    if done not in held:
                        self._values.pop(done, None)

    def _run(self, node: fx.Node) -> None:
        key = meta.key(node)
        if node.op == "get_attr":
            self._values[node] = self._attributes[str(node.target)]
            self.seconds[key] = 0.0
            return
        if not callable(node.target):
            raise CostError(f"cannot measure {key}: {node.op} nodes have no function to time")
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        if traits(node).launch:
            own_args, own_kwargs = args, kwargs
            if traits(node).writes:  # repeating the call must not change the run's values
                own_args, own_kwargs = tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            waits = self._waits.get(node)
            completion = None if waits is None else Completion(node, tuple(waits), self._values)
            self.calls[key] = LaunchCall(node.target, own_args, own_kwargs, group_name(node), completion)
        self._synchronise()
        start = time.perf_counter()
        self._values[node] = node.target(*args, **kwargs)
        if not traits(node).launch:
            self._synchronise()
        elapsed = 0.0 if launch_of(node) is not None else time.perf_counter() - start
        for own, share in meta.shares(node).items():
            self.seconds[own] = self.seconds.get(own, 0.0) + elapsed * share


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    seen: set[fx.Node] = set()
    last: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        for source in node.all_input_nodes:
            if source not in seen:
                seen.add(source)
                last.setdefault(node, []).append(source)
    return last


def _synchroniser(values: Any) -> Callable[[], None]:
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)
    return torch.cuda.synchronize if on_gpu else lambda: None


def _transfer_seconds(call: LaunchCall, repeat: int, warmup: int) -> tuple[float, float]:
    """Time to start a transfer, and from then until it is over."""
    group = _group(call)
    synchronise = _synchroniser(call.args)
    if group is not None:
        dist.barrier(group)
    issued, moved = [], []
    for _ in range(warmup + repeat):
        start = time.perf_counter()
        launched = call.launch()
        started = time.perf_counter()
        call.wait(launched)
        synchronise()
        issued.append(started - start)
        moved.append(time.perf_counter() - started)
    return statistics.median(issued[warmup:]), statistics.median(moved[warmup:])


def _latency_seconds(call: LaunchCall, repeat: int, warmup: int) -> float:
    """Time of a transfer of one element on the same group: what remains however small the message is."""
    group = _group(call)
    if group is None:
        return 0.0
    size = dist.get_world_size(group)
    device = next((a.device for a in call.args if isinstance(a, torch.Tensor)), torch.device("cpu"))
    tiny = torch.zeros(size, device=device)
    ones = [1] * size
    small = LaunchCall(torch.ops._c10d_functional.all_to_all_single, (tiny, ones, ones, call.queue), {}, call.queue)
    return _transfer_seconds(small, repeat, warmup)[1]


def _group(call: LaunchCall) -> dist.ProcessGroup | None:
    return group_by_name(call.queue) if is_distributed() else None


def _shared(costs: NodeCosts, group: dist.ProcessGroup) -> NodeCosts:
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, costs, group=group)

    def joined(table: str, combine: Callable[[list[float]], float]) -> dict[str, float]:
        mine: Mapping[str, float] = getattr(costs, table)
        return {key: combine([getattr(c, table)[key] for c in everyone if key in getattr(c, table)]) for key in mine}

    mean = joined("seconds", statistics.fmean)
    slowest = joined("seconds", max)
    seconds = {key: slowest[key] if key in costs.issue else mean[key] for key in mean}
    return dataclasses.replace(
        costs, seconds=seconds, latency=joined("latency", min), issue=joined("issue", statistics.fmean)
    )
