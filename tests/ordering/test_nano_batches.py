"""Nano-batches inside a graph: every policy hides the messages of one behind another, and says where they lose."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.graphs.reordering import check_order
from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.builtin_policies import alternate, auto, dualpipe, list_, megatron, sequential
from annopipe.ordering.host_reads import counts_together
from annopipe.ordering.patterns import apply, parse
from annopipe.ordering.patterns.matching import match
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from annopipe.simulation import Network, run

POLICIES = (sequential, alternate, dualpipe, megatron, list_, auto)
FORWARD = ("router", "counts", "dispatch", "experts", "combine")
BACKWARD = ("combine", "experts", "dispatch", "router")


class Builder:
    """Graphs whose expert layers run in lanes, as ``ap.trace`` gives them: nano-batch after nano-batch."""

    def __init__(self) -> None:
        self.nodes: list[OverlapNode] = []
        self.dependencies: list[tuple[int, ...]] = []

    def add(self, graph: str, lane: str, region: str, kind: str, cost: float, *before: int, phase: str, **more) -> int:
        number = len(self.nodes)
        queue = "ep" if kind == "launch" else ""
        prefix = f"{graph}." if graph else ""
        described = number, f"{prefix}n{number}", region, kind, graph + lane, phase, cost, queue
        self.nodes.append(OverlapNode(*described, graph=graph, **more))
        self.dependencies.append(tuple(sorted({b for b in before if b >= 0})))
        return number

    def graph(
        self, name: str, layers: list[int], *, backward: bool = False, cost: float = 1.0, latency: float = 0.0
    ) -> None:
        """Blocks of attention and experts, which run in so many nano-batches as each layer says."""
        at = -1
        numbers = list(enumerate(layers))
        for layer, parts in reversed(numbers) if backward else numbers:
            block, phase = f"block{layer}", "input_grad" if backward else "forward"
            if not backward:
                at = self.add(name, "", f"{block}/attention", "compute", cost, at, phase=phase)
            if parts == 0:  # a dense layer
                at = self.add(name, "", f"{block}/mlp", "compute", cost, at, phase=phase)
            lanes = range(parts)
            ends = [
                self._lane(name, str(lane), block, at, cost / parts, latency, phase)
                for lane in (reversed(lanes) if backward else lanes)
            ]
            if ends:
                at = self.add(name, "", f"{block}/moe", "compute", 0.0, *ends, phase=phase)  # the join
            if backward:
                sums = [index for index, node in enumerate(self.nodes) if node.phase == "weight_grad"][-parts:]
                self.add(name, "", f"{block}/moe/experts", "compute", 0.0, *sums, phase="weight_grad")
                at = self.add(name, "", f"{block}/attention", "compute", cost, at, phase=phase)

    def _lane(self, name: str, lane: str, block: str, at: int, cost: float, latency: float, phase: str) -> int:
        for step in FORWARD if phase == "forward" else BACKWARD:
            region = f"{block}/moe/{'dispatch' if step == 'counts' else step}"
            if step in ("router", "experts"):
                own = cost / 10 if step == "router" else cost
                at = self.add(name, lane, region, "compute", own, at, phase=phase)
                if step == "experts" and phase == "input_grad":
                    self.add(name, lane, region, "compute", cost / 2, at, phase="weight_grad")
                continue
            small = step == "counts"
            seconds = (latency or 0.01) if small else cost + latency
            launch = self.add(
                name, lane, region, "launch", seconds, at, phase=phase, latency=latency, floating=not small
            )
            at = self.add(name, lane, region, "wait", 0.0, launch, phase=phase, launch=launch)
            if small:
                at = self.add(name, lane, region, "host", 0.0, at, phase=phase)
        return at

    @property
    def problem(self) -> OverlapProblem:
        return OverlapProblem(tuple(self.nodes), tuple(self.dependencies), Network(in_flight=1))


def _alone(layers: list[int], **options) -> OverlapProblem:
    builder = Builder()
    builder.graph("", layers, **options)
    return builder.problem


@st.composite
def _problems(draw: st.DrawFn) -> OverlapProblem:
    """One to three graphs, forwards and backwards, whose layers have zero to four nano-batches."""
    builder = Builder()
    kinds = draw(st.sampled_from(["", "F", "B", "FB", "FF", "BB", "FBB", "BFF"]))
    names = [kind + (str(kinds[:at].count(kind)) if kinds.count(kind) > 1 else "") for at, kind in enumerate(kinds)]
    for name in names or [""]:
        layers = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
        backward = name.startswith("B") or (not name and draw(st.booleans()))
        latency = draw(st.sampled_from([0.0, 0.125, 2.0]))
        builder.graph(name, layers, backward=backward, cost=draw(st.sampled_from([0.5, 1.0, 3.0])), latency=latency)
    return builder.problem


@settings(max_examples=60, deadline=None, derandomize=True)
@given(_problems())
def test_every_policy_gives_a_legal_order_of_nested_lanes(problem: OverlapProblem) -> None:
    for policy in (sequential, alternate, dualpipe, megatron, list_):
        order = policy(problem)
        check_order(problem.nodes, order, problem.dependencies)
        assert lower_bound(problem) <= problem.makespan(order) + 1e-9
        assert policy(problem) == order


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_graph_alone_hides_what_one_lane_sends_behind_the_others(policy, parts: int, backward: bool) -> None:
    problem = _alone([parts] * 3, backward=backward)
    exposed = {
        name: run(problem.program(function(problem)), problem.network).exposed_comm
        for name, function in (("sequential", sequential), ("policy", policy))
    }
    assert exposed["policy"] < 0.65 * exposed["sequential"]


@pytest.mark.parametrize("policy", [alternate, dualpipe, megatron])
def test_the_counts_of_all_nano_batches_are_sent_before_any_is_read(policy) -> None:
    problem = _alone([2, 3])
    order = policy(problem)
    for layer, parts in ((0, 2), (1, 3)):
        kinds = [
            "counts" if node.kind == "launch" else "read"
            for node in (problem.nodes[index] for index in order)
            if node.region == f"block{layer}/moe/dispatch"
            and (node.kind == "host" or (node.kind == "launch" and not node.floating))
        ]
        assert kinds[:parts] == ["counts"] * parts


@pytest.mark.parametrize("policy", [list_, auto])
def test_so_they_are_by_cost_where_that_is_no_slower(policy) -> None:
    problem = _alone([2, 3])
    order = policy(problem)
    together = counts_together(problem, order)
    assert together == order or problem.makespan(together) > problem.makespan(order)


def test_the_attention_of_the_second_nano_batch_still_hides_the_rows_of_the_first() -> None:
    builder = Builder()
    for lane in ("0", "1"):
        at = builder.add("", lane, "block0/attention", "compute", 1.0, phase="forward")
        builder._lane("", lane, "block0", at, 1.0, 0.0, "forward")
    problem = builder.problem
    order = [problem.nodes[index] for index in alternate(problem)]
    rows = next(place for place, node in enumerate(order) if node.kind == "launch" and node.floating)
    attention = [place for place, node in enumerate(order) if node.region.endswith("attention")]
    assert attention[0] < rows < attention[1]


def test_layers_of_nano_batches_are_those_of_their_graph() -> None:
    builder = Builder()
    builder.graph("F", [0, 2])  # the first block is dense: the lanes' first experts are those of layer 1
    found = match(builder.problem, parse("F.attention ; F0.experts | F1.experts"))
    layers = {(str(m.piece), builder.nodes[index].region): m.layer for index, m in found.items()}
    assert layers == {
        ("F.attention", "block0/attention"): 0,
        ("F.attention", "block1/attention"): 1,
        ("F0.experts", "block1/moe/experts"): 1,
        ("F1.experts", "block1/moe/experts"): 1,
    }


def test_a_pattern_names_the_lanes_of_a_graph_alone_by_their_numbers() -> None:
    problem = _alone([2])
    pattern = parse("0.router ; 0.dispatch | 1.router ; 1.dispatch | 0.experts ; 0.combine | 1.experts ; 1.combine")
    order = apply(problem, pattern)
    check_order(problem.nodes, order, problem.dependencies)
    rows = [
        problem.nodes[index] for index in order if problem.nodes[index].floating or "experts" in _region(problem, index)
    ]
    assert [(node.lane, node.region.rpartition("/")[2]) for node in rows] == [
        *(("0", "dispatch"), ("1", "dispatch"), ("0", "experts")),
        *(("0", "combine"), ("1", "experts"), ("1", "combine")),
    ]


def test_tiny_messages_are_reported_as_a_loss() -> None:
    tiny = _alone([2, 2], cost=0.01, latency=1.0)
    assert "nano-batches lose: their 6 more messages cost 6 s" in auto(tiny).reason
    assert "do not split here" in auto(tiny).reason
    assert "lose" not in auto(_alone([2, 2], latency=0.01)).reason
    whole = dataclasses.replace(tiny, nodes=tuple(dataclasses.replace(node, lane="") for node in tiny.nodes))
    assert "lose" not in auto(whole).reason, "without lanes there is nothing to take back"


def _region(problem: OverlapProblem, index: int) -> str:
    return problem.nodes[index].region
