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
    found: dict[str, OverlapProblem] = {}
    for layers in (1, 2, 3, 4):
        for ratio in (0.25, 0.5, 1.0, 2.0):
            moe = ("moe",) * layers
            found[f"pair of {layers}, x{ratio:g}"] = Shape({"B": moe, "F": moe}, ratio).problem(layers)
    for number, (back, front) in enumerate([(1, 3), (3, 1), (2, 4), (4, 2), (4, 3)]):
        shape = Shape({"B": ("moe",) * back, "F": ("moe",) * front}, (0.5, 1.0, 2.0, 1.0, 0.75)[number])
        found[f"B of {back}, F of {front}, x{shape.ratio:g}"] = shape.problem(10 + number)
    mixed = ("dense", "moe", "moe", "moe")
    for ratio in (0.25, 0.5, 1.0, 2.0):
        found[f"dense with MoE, x{ratio:g}"] = Shape({"B": mixed[::-1], "F": mixed}, ratio).problem(20)
    for seed in (1, 2, 3):
        moe = ("moe",) * 6
        found[f"pair of 6, x1, seed {seed}"] = Shape({"B": moe, "F": moe}, 1.0).problem(seed)
    found["dense beside MoE, x1"] = Shape({"B": ("dense",) * 4, "F": ("moe",) * 4}, 1.0).problem(21)
    for layers in (1, 2, 3):
        for ratio in (0.25, 0.5, 1.0, 2.0):
            moe = ("moe",) * layers
            shape = Shape({"B": moe, "F0": moe, "F1": moe}, ratio)
            found[f"B, F0 and F1 of {layers}, x{ratio:g}"] = shape.problem(30 + layers)
    four = ("moe",) * 4
    for ratio in (0.5, 0.75, 1.0, 1.5):
        found[f"B, F0 and F1 of 4, x{ratio:g}"] = Shape({"B": four, "F0": four, "F1": four}, ratio).problem(34)
    for ratio in (0.5, 1.0, 2.0):
        found[f"F0 and F1 of 4, x{ratio:g}"] = Shape({"F0": four, "F1": four}, ratio).problem(40)
    found["B0 and B1 of 3, x1"] = Shape({"B0": ("moe",) * 3, "B1": ("moe",) * 3}, 1.0).problem(41)
    three = ("moe",) * 3
    found["counts, x1"] = Shape({"B": three, "F": three}, 1.0, counts=True).problem(50)
    found["counts of two lanes, x1"] = Shape({"F0": three, "F1": three}, 1.0, counts=True).problem(51)
    found["issue times, x1"] = Shape({"B": three, "F": three}, 1.0, issue_us=150).problem(52)
    found["two links, x1"] = Shape({"B": three, "F": three}, 1.5, queues=True).problem(53)
    found["shared experts, x1"] = Shape({"B": three, "F": three}, 1.0, shared=True).problem(54)
    return found


def large() -> dict[str, OverlapProblem]:
    """Problems beyond 60 tasks, with as much communication as computation: compared with a rounded bound."""
    found = {}
    for seed in range(3):
        moe = ("moe",) * 5
        found[f"B, F0 and F1 of 5, x1, seed {seed}"] = Shape({"B": moe, "F0": moe, "F1": moe}, 1.0).problem(seed)
    for seed in range(3):
        moe = ("moe",) * 8
        found[f"pair of 8, x1, seed {seed}"] = Shape({"B": moe, "F": moe}, 1.0).problem(seed)
    return found


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
        for region in _FORWARD[kind]:
            if region in _TRANSFERS:
                if region == "dispatch" and self._shape.counts:
                    self._transfer(lane, f"{block}/counts")
                    self._last = (self._add(lane, f"{block}/counts", "host", 20),)
                before = self._last
                self._transfer(lane, f"{block}/{region}")
                if region == "combine" and self._shape.shared:
                    self._last = (*self._last, shared)
                if region == "dispatch" and self._shape.shared:
                    shared = self._add(lane, f"{block}/shared", "compute", self._time(lane) // 2, before)
            else:
                self._last = (self._add(lane, f"{block}/{region}", "compute", self._time(lane)),)

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
