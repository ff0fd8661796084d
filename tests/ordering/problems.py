"""Overlap problems for tests: the published DeepSeek-V3 pair, and random ones."""

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from annopipe.ordering.problem import OverlapNode, OverlapProblem
from annopipe.simulation import Network

__all__ = ["balanced_pair", "deepseek_pair", "launches_of", "model_problem", "random_problems", "suite"]

_TRANSFER_REGIONS = ("dispatch", "combine")
_CHAINS = {
    "B": ("combine(B)", "mlp(B)", "dispatch(B)", "attn(B)"),
    "F": ("attn(F)", "dispatch(F)", "mlp(F)", "combine(F)"),
}
_REGIONS = {"attn": "attention", "mlp": "experts", "dispatch": "dispatch", "combine": "combine"}
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


def launches_of(problem: OverlapProblem, order: Sequence[int]) -> list[str]:
    """The names of the launches, in order."""
    return [problem.nodes[index].name for index in order if problem.nodes[index].kind == "launch"]


def model_problem(
    layers: dict[str, int], chains: dict[str, str], *, tagged: bool = True, cost: float = 1.0, counts: bool = False
) -> OverlapProblem:
    """A problem with the regions of a model.

    Args:
        layers: layers of each lane.
        chains: the regions of a layer of each lane, in order; those of ``_TRANSFER_REGIONS`` are a launch and a wait.
            A backward lane ("B...") has its layers from the last to the first, and weight gradients.
        tagged: whether paths begin with the layer's number.
        counts: whether a dispatch of a forward begins with an exchange of counts and a host read.
    """
    builder = _Builder()
    for lane, chain in chains.items():
        backward = lane.startswith("B")
        numbers = range(layers[lane])
        for layer in reversed(numbers) if backward else numbers:
            for region in chain.split():
                path = f"block{layer}/{region}" if tagged else region
                builder.add_region(lane, path, cost, backward=backward, counts=counts and region == "dispatch")
    return OverlapProblem(tuple(builder.nodes), tuple(builder.dependencies))


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
        region = f"block{layer if lane == 'F' else 3 - layer}/{_REGIONS[name.partition('(')[0]]}"
        self.nodes.append(
            OverlapNode(number, f"{layer}.{name}", region, kind, lane, phase, us * 1e-6, queue, more.get("launch", -1))
        )
        self.dependencies.append(before)
        return number

    def add_region(self, lane: str, path: str, cost: float, *, backward: bool, counts: bool) -> None:
        """One region behind the lane's last one: a transfer, or computation with its weight gradient."""
        phase = "input_grad" if backward else "forward"
        if path.rpartition("/")[2] not in _TRANSFER_REGIONS:
            self._last[lane] = self._node(lane, path, "compute", cost, phase)
            if backward:
                self._node(lane, path, "compute", cost / 2, "weight_grad")
            return
        if counts:
            launch = self._last[lane] = self._node(lane, path, "launch", 0.01, phase)
            self._last[lane] = self._node(lane, path, "wait", 0.0, phase, launch)
            self._last[lane] = self._node(lane, path, "host", 0.0, phase)
        launch = self._last[lane] = self._node(lane, path, "launch", cost, phase)
        self._last[lane] = self._node(lane, path, "wait", 0.0, phase, launch)

    def _node(self, lane: str, path: str, kind: str, cost: float, phase: str, launch: int = -1) -> int:
        number = len(self.nodes)
        name = f"{lane}.{path.replace('/', '.')}.{'W' if phase == 'weight_grad' else kind}"
        queue = "ep" if kind == "launch" else ""
        self.nodes.append(OverlapNode(number, name, path, kind, lane, phase, cost, queue, launch))
        self.dependencies.append((self._last[lane],) if lane in self._last else ())
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
    network = Network(in_flight=draw(st.integers(1, 2)), shared_link=draw(st.booleans()))
    return OverlapProblem(tuple(nodes), tuple(dependencies), network)


def balanced_pair(blocks: int) -> OverlapProblem:
    """A measured pair of 2 or 4 blocks with as much communication as computation (golden/)."""
    data = json.loads((Path(__file__).parent / "golden" / f"balanced_{blocks}_blocks.json").read_text())
    nodes = [
        OverlapNode(i, f"{lane}.n{i}", region, kind, lane, phase, us * 1e-6, "ep" if kind == "launch" else "", launch)
        for i, (lane, region, kind, phase, us, launch, _) in enumerate(data["nodes"])
    ]
    return OverlapProblem(tuple(nodes), tuple(tuple(row[-1]) for row in data["nodes"]))


def suite() -> dict[str, OverlapProblem]:
    """More than 40 problems of many shapes, the same at every call."""
    generator = random.Random(1)
    chains = {
        "pair": {"B": "combine experts dispatch attention", "F": "attention dispatch experts combine"},
        "nano-batches": {"F0": "attention dispatch experts combine", "F1": "attention dispatch experts combine"},
        "dense beside experts": {"B": "mlp attention", "F": "attention dispatch experts combine"},
        "dense": {"B": "mlp attention", "F": "attention mlp"},
        "alone": {"F": "attention dispatch experts combine"},
        "three": {
            "B0": "combine experts dispatch attention",
            "B1": "combine experts dispatch attention",
            "F": "attention dispatch experts combine",
        },
    }
    problems = {"deepseek": deepseek_pair(), "balanced 2": balanced_pair(2), "balanced 4": balanced_pair(4)}
    for name, chain in chains.items():
        for number in range(7):
            layers = {lane: generator.choice([1, 2, 4]) for lane in chain}
            made = model_problem(layers, chain, counts=number % 2 == 1)
            ratio = generator.choice([0.1, 0.5, 1.0, 2.0])
            nodes = []
            for node in made.nodes:
                cost = node.cost * generator.uniform(0.3, 1.7) * (ratio if node.kind == "launch" else 1.0)
                issue = 0.02 if node.kind == "launch" and number == 3 else 0.0
                nodes.append(dataclasses.replace(node, cost=cost, issue=issue))
            network = Network(in_flight=2 if number == 4 else 1, shared_link=number != 5)
            problems[f"{name} {number}"] = dataclasses.replace(made, nodes=tuple(nodes), network=network)
    return problems
