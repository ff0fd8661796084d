"""The problems on which policy ``search`` is compared with the optimum: plain data, the same at every call.

A task is a computation or a transfer. A layer of experts is attention, dispatch, experts and combine; a backward has a
weight gradient beside each computation, so a layer of a pair has 10 tasks, and 14 with a backward and two half-batch
forwards. All times are whole microseconds, so that an optimum can be proved to the last digit; transfers add up to a
given share of the computation.
"""

import dataclasses
import random
from collections.abc import Mapping, Sequence

from annopipe.ordering.problem import OverlapNode, OverlapProblem
from annopipe.simulation import Network

__all__ = ["Shape", "large", "suite"]

_FORWARD = {"moe": ("attention", "dispatch", "experts", "combine"), "dense": ("attention", "mlp")}
_TRANSFERS = ("dispatch", "combine", "counts")
_MEAN_US = 8_000


@dataclasses.dataclass(frozen=True)
class Shape:
    """Lanes with their layers, and how much communication there is.

    lanes: kinds of layers, "moe" or "dense", of each lane; a lane whose name begins with B is a backward, one whose
        name ends with a digit has half the batch.
    ratio: communication over computation.  spread: how much times differ from layer to layer, 0 to 1.
    counts: whether a forward's dispatch follows an exchange of counts that the host reads.
    issue_us: what a launch takes of the thread.  queues: whether backward lanes have a link of their own.
    shared: whether a layer of experts has a shared expert, too, which needs no transfer.
    """

    lanes: Mapping[str, Sequence[str]]
    ratio: float
    spread: float = 0.8
    counts: bool = False
    issue_us: int = 0
    queues: bool = False
    shared: bool = False

    def problem(self, seed: int) -> OverlapProblem:
        """The problem of this shape that belongs to a seed."""
        return _Builder(self, random.Random(seed)).problem()


def suite() -> dict[str, OverlapProblem]:
    """The problems of up to 60 tasks, whose optimum CP-SAT proves."""
    shapes: dict[str, tuple[Shape, int]] = {}
    ratios = (0.25, 0.5, 1.0, 2.0)
    mixed = ("dense", "moe", "moe", "moe")
    for layers in (1, 2, 3, 4):
        shapes |= {f"pair of {layers}, x{r:g}": (Shape(_lanes("B F", layers), r), layers) for r in ratios}
    for seed in (1, 2, 3):
        shapes[f"pair of 6, x1, seed {seed}"] = Shape(_lanes("B F", 6), 1.0), seed
    for number, (back, front, ratio) in enumerate([(1, 3, 0.5), (3, 1, 1.0), (2, 4, 2.0), (4, 2, 1.0), (4, 3, 0.75)]):
        lanes = {**_lanes("B", back), **_lanes("F", front)}
        shapes[f"B of {back}, F of {front}, x{ratio:g}"] = Shape(lanes, ratio), 10 + number
    for ratio in ratios:
        shapes[f"dense with MoE, x{ratio:g}"] = Shape({"B": mixed[::-1], "F": mixed}, ratio), 20
    shapes["dense beside MoE, x1"] = Shape({"B": ("dense",) * 4, **_lanes("F", 4)}, 1.0), 21
    for layers in (1, 2, 3):
        shapes |= {f"B, F0, F1 of {layers}, x{r:g}": (Shape(_lanes("B F0 F1", layers), r), 30 + layers) for r in ratios}
    for ratio in (0.5, 0.75, 1.0, 1.5):
        shapes[f"B, F0, F1 of 4, x{ratio:g}"] = Shape(_lanes("B F0 F1", 4), ratio), 34
    for ratio in (0.5, 1.0, 2.0):
        shapes[f"F0, F1 of 4, x{ratio:g}"] = Shape(_lanes("F0 F1", 4), ratio), 40
    shapes["B0, B1 of 3, x1"] = Shape(_lanes("B0 B1", 3), 1.0), 41
    shapes["counts, x1"] = Shape(_lanes("B F", 3), 1.0, counts=True), 50
    shapes["counts of two lanes, x1"] = Shape(_lanes("F0 F1", 3), 1.0, counts=True), 51
    shapes["issue times, x1"] = Shape(_lanes("B F", 3), 1.0, issue_us=150), 52
    shapes["two links, x1.5"] = Shape(_lanes("B F", 3), 1.5, queues=True), 53
    shapes["shared experts, x1"] = Shape(_lanes("B F", 3), 1.0, shared=True), 54
    return {name: shape.problem(seed) for name, (shape, seed) in shapes.items()}


def large() -> dict[str, OverlapProblem]:
    """Problems of 70 and 80 tasks, with as much communication as computation: compared with a rounded bound."""
    sizes = {"B, F0, F1 of 5": _lanes("B F0 F1", 5), "pair of 8": _lanes("B F", 8)}
    return {f"{n}, x1, seed {seed}": Shape(of, 1.0).problem(seed) for n, of in sizes.items() for seed in range(3)}


def _lanes(names: str, layers: int) -> dict[str, Sequence[str]]:
    return dict.fromkeys(names.split(), ("moe",) * layers)


class _Builder:
    """Adds node after node; ``_last`` is what the next of a lane needs."""

    def __init__(self, shape: Shape, generator: random.Random) -> None:
        self._shape, self._random = shape, generator
        self._nodes: list[OverlapNode] = []
        self._dependencies: list[tuple[int, ...]] = []
        self._last: tuple[int, ...] = ()

    def problem(self) -> OverlapProblem:
        for lane, kinds in self._shape.lanes.items():
            self._last = ()
            for layer, kind in enumerate(kinds):
                if lane.startswith("B"):
                    self._backward(lane, f"block{len(kinds) - 1 - layer}", kind)
                else:
                    self._forward(lane, f"block{layer}", kind)
        scaled = _scaled(self._nodes, self._shape.ratio)
        return OverlapProblem(tuple(scaled), tuple(self._dependencies), Network(shared_link=not self._shape.queues))

    def _forward(self, lane: str, block: str, kind: str) -> None:
        beside: tuple[int, ...] = ()  # a shared expert, whose result the combined rows are added to
        for region in _FORWARD[kind]:
            if region not in _TRANSFERS:
                self._last = (self._add(lane, f"{block}/{region}", "compute", self._time(lane)),)
                continue
            if region == "dispatch" and self._shape.counts:
                self._transfer(lane, f"{block}/counts")
                self._last = (self._add(lane, f"{block}/counts", "host", 20),)
            before = self._last
            self._transfer(lane, f"{block}/{region}")
            if region == "dispatch" and self._shape.shared:
                beside = (self._add(lane, f"{block}/shared", "compute", self._time(lane) // 2, before),)
            elif region == "combine":
                self._last = (*self._last, *beside)

    def _backward(self, lane: str, block: str, kind: str) -> None:
        for region in reversed(_FORWARD[kind]):
            if region in _TRANSFERS:
                self._transfer(lane, f"{block}/{region}")
            else:
                self._last = (self._add(lane, f"{block}/{region}", "compute", self._time(lane)),)
                self._add(lane, f"{block}/{region}", "compute", self._time(lane), phase="weight_grad")

    def _time(self, lane: str) -> int:
        spread = self._shape.spread
        half = 0.5 if lane[-1].isdigit() else 1.0
        return max(1, round(_MEAN_US * half * self._random.uniform(1 - spread, 1 + spread)))

    def _transfer(self, lane: str, region: str) -> None:
        us = 30 if region.endswith("counts") else self._time(lane)
        launch = self._add(lane, region, "launch", us)
        self._last = (self._add(lane, region, "wait", 0, (launch,), launch=launch),)

    def _add(
        self,
        lane: str,
        region: str,
        kind: str,
        us: int,
        before: tuple[int, ...] | None = None,
        *,
        phase: str = "",
        launch: int = -1,
    ) -> int:
        number = len(self._nodes)
        phase = phase or ("input_grad" if lane.startswith("B") else "forward")
        name = f"{lane}.{region.replace('/', '.')}.{'W' if phase == 'weight_grad' else kind}"
        queue = "" if kind != "launch" else "ep_backward" if self._shape.queues and lane.startswith("B") else "ep"
        issue = self._shape.issue_us * 1e-6 if kind == "launch" else 0.0
        floating = kind == "launch" and not region.endswith("counts")
        node = OverlapNode(
            number, name, region, kind, lane, phase, us * 1e-6, queue, launch, issue=issue, floating=floating
        )
        self._nodes.append(node)
        self._dependencies.append(self._last if before is None else before)
        return number


def _scaled(nodes: Sequence[OverlapNode], ratio: float) -> list[OverlapNode]:
    """The nodes with transfers of rows scaled so that they take ``ratio`` times as long as all computation."""
    computation = sum(node.cost for node in nodes if node.kind == "compute")
    communication = sum(node.cost for node in nodes if node.floating)
    factor = ratio * computation / communication if communication else 1.0
    return [
        dataclasses.replace(node, cost=round(node.cost * factor * 1e6) * 1e-6) if node.floating else node
        for node in nodes
    ]
