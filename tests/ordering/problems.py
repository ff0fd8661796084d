"""Overlap problems for tests: the published DeepSeek-V3 pair, and random ones."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from annopipe.ordering.problem import OverlapNode, OverlapProblem
from annopipe.simulation import Network

__all__ = ["deepseek_pair", "launch_order", "launches_early", "random_problems"]

_CHAINS = {
    "B": ("combine(B)", "mlp(B)", "dispatch(B)", "attn(B)"),
    "F": ("attn(F)", "dispatch(F)", "mlp(F)", "combine(F)"),
}
_TRANSFERS = frozenset({"combine(B)", "dispatch(B)", "dispatch(F)", "combine(F)"})


def deepseek_pair() -> OverlapProblem:
    """Four layers of DeepSeek-V3's overlapped pair, with the kernel times of its published profile (golden/)."""
    data = json.loads((Path(__file__).parent / "golden" / "deepseek_v3_pair.json").read_text())
    builder = _Builder()
    for number, layer in enumerate(data["layers_us"]):
        for lane, chain in _CHAINS.items():
            for name in chain:
                builder.add_component(number, lane, name, layer)
    return OverlapProblem(tuple(builder.nodes), tuple(builder.dependencies))


def launch_order(problem: OverlapProblem, sequence: list[str], layers: int = 4) -> list[int]:
    """The nodes in the order in which a layer's components are launched, each wait right behind the last component."""
    index = {node.name: node.index for node in problem.nodes}
    order = [index[f"{layer}.{name}"] for layer in range(layers) for name in sequence]
    return order + [node.index for node in problem.nodes if node.kind == "wait"]


def launches_early(problem: OverlapProblem, order: Sequence[int]) -> list[int]:
    """The order with every launch moved to just behind the last node that must come before it.

    Launches keep their sequence. For an order of streams, where a launch waits for its inputs and not for the
    computation issued before it.
    """
    place = {index: position for position, index in enumerate(order)}
    keys: dict[int, tuple[float, int]] = {}
    last_launch = -1.0
    for index in order:
        keys[index] = (float(place[index]), place[index])
        if problem.nodes[index].kind == "launch":
            inputs = (keys[source][0] for source in problem.dependencies[index])
            last_launch = max(last_launch, *inputs, -1.0) if problem.dependencies[index] else last_launch
            keys[index] = (last_launch + 0.25 if last_launch == int(last_launch) else last_launch, place[index])
            last_launch = keys[index][0]
    return sorted(order, key=keys.__getitem__)


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[OverlapNode] = []
        self.dependencies: list[tuple[int, ...]] = []
        self._last: dict[str, int] = {}

    def add_component(self, layer: int, lane: str, name: str, times_us: dict[str, float]) -> None:
        before = (self._last[lane],) if lane in self._last else ()
        if name in _TRANSFERS:
            launch = self._add(layer, lane, name, "launch", times_us[name], before)
            self._last[lane] = self._add(layer, lane, f"{name}.wait", "wait", 0.0, (launch,), launch=launch)
            return
        self._last[lane] = self._add(layer, lane, name, "compute", times_us[name], before)
        if lane == "B":
            weight = name.replace("(B)", "(W)")
            self._add(layer, lane, weight, "compute", times_us[weight], (self._last[lane],), phase="weight_grad")

    def _add(self, layer: int, lane: str, name: str, kind: str, us: float, before: tuple[int, ...], **more: Any) -> int:
        number = len(self.nodes)
        phase = more.pop("phase", "forward" if lane == "F" else "input_grad")
        queue = "ep" if kind == "launch" else ""
        self.nodes.append(
            OverlapNode(number, f"{layer}.{name}", name, kind, lane, phase, us * 1e-6, queue, more.get("launch", -1))
        )
        self.dependencies.append(before)
        return number


@st.composite
def random_problems(draw: st.DrawFn, most_nodes: int = 24) -> OverlapProblem:
    """Problems with one to three lanes, transfers on one or two queues, and a few dependencies between lanes."""
    nodes: list[OverlapNode] = []
    dependencies: list[tuple[int, ...]] = []
    open_launches: dict[str, list[int]] = {}
    times = st.integers(0, 20).map(lambda ticks: ticks / 8)
    for number in range(draw(st.integers(1, most_nodes))):
        lane = draw(st.sampled_from(["B", "F", "G"]))
        kind = draw(st.sampled_from(["compute", "compute", "launch", "wait", "host"]))
        across = draw(st.integers(0, 9)) == 0  # fences and random numbers order nodes of other lanes, too
        mine = [n.index for n in nodes if across or n.lane == lane]
        before = set(draw(st.lists(st.sampled_from(mine), max_size=2))) if mine else set()
        launch = -1
        if kind == "wait":
            if not open_launches.get(lane):
                kind = "compute"
            else:
                launch = open_launches[lane].pop(0)
                before.add(launch)
        if kind == "launch":
            open_launches.setdefault(lane, []).append(number)
        cost = 0.0 if kind == "wait" else draw(times)
        latency = draw(st.sampled_from([0.0, cost / 4])) if kind == "launch" else 0.0
        queue = draw(st.sampled_from(["ep", "dp"])) if kind == "launch" else ""
        issue = draw(st.sampled_from([0.0, 0.125])) if kind == "launch" else 0.0
        node = OverlapNode(number, f"{lane}.n{number}", "r", kind, lane, "", cost, queue, launch, latency, issue)
        nodes.append(node)
        dependencies.append(tuple(sorted(before)))
    network = Network(draw(st.integers(1, 2)), draw(st.booleans()), interference=draw(st.sampled_from([0.0, 0.0, 0.5])))
    return OverlapProblem(tuple(nodes), tuple(dependencies), network)
