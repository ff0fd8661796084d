"""Costs of a schedule's actions from real graphs: simulated as the runtime runs them."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from annopipe.costs.stored import stored_bytes
from annopipe.models.exchange import exchange
from annopipe.ordering.combining import Part, combine, lanes_of, part_costs
from annopipe.scheduling.actions import Action


class Mlp(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.tanh(self.first(x)))


def traced(width: int = 8, *, input_grad: bool = True) -> ap.StageGraphs:
    return ap.trace(Mlp(width), (torch.ones(4, width).requires_grad_(input_grad),))


def one_each(graph: ap.StageGraph) -> ap.NodeCosts:
    """A second for every product of matrices."""
    return ap.NodeCosts({name: float(name.startswith("mm")) for name in names(graph)})


def names(graph: ap.StageGraph) -> list[str]:
    return [row.node.name for row in ap.region_table(graph)]


def test_times_are_those_of_the_graphs_in_their_own_order() -> None:
    costs = ap.costs.actions(traced(), one_each)
    assert (costs.F, costs.B, costs.I, costs.W) == (2.0, 4.0, 2.0, 2.0)


def test_a_stage_whose_input_needs_no_gradient_has_less_to_do() -> None:
    costs = ap.costs.actions({0: traced(input_grad=False), 1: traced()}, one_each)
    assert costs.F == [2.0, 2.0]
    assert costs.B == [3.0, 4.0]


def test_a_stage_without_backward_takes_no_time_for_it() -> None:
    module = Mlp().requires_grad_(False)
    costs = ap.costs.actions(ap.trace(module, (torch.ones(4, 8),)), one_each)
    assert (costs.F, costs.B, costs.I, costs.W, costs.activation) == (2.0, 0.0, 0.0, 0.0, 0.0)
    assert costs.duration(Action.parse("(0F1;0B0)OVERLAP_F_B")) == 2.0


def test_every_combination_is_planned_by_its_own_parts() -> None:
    costs = ap.costs.actions({0: traced(input_grad=False), 1: traced()}, one_each)
    assert costs.duration(Action.parse("(1F1;0B0)OVERLAP_F_B")) == 5.0
    assert costs.duration(Action.parse("(0F1;1B0)OVERLAP_F_B")) == 6.0
    assert costs.duration(Action.parse("(0F1;1I0)OVERLAP_F_B")) == 4.0
    assert callable(costs.FB)
    assert costs.FB(0, 1) == 6.0


def test_one_stage_stands_for_all_in_a_simulation() -> None:
    schedule = ap.schedule("zbv", ranks=2, microbatches=4)
    same = ap.simulate(schedule, ap.costs.actions(traced(), one_each))
    listed = ap.simulate(schedule, ap.costs.actions({stage: traced() for stage in range(4)}, one_each))
    assert same.makespan == listed.makespan == ap.simulate(schedule, ap.costs.table(F=2.0, I=2.0, W=2.0)).makespan


def test_keys_of_combined_graphs_and_bare_names_are_taken() -> None:
    graphs = traced()
    bare = one_each(graphs.forward) | one_each(graphs.backward)
    combined = one_each(graphs.forward).in_lane("F") | one_each(graphs.backward).in_lane("B")
    for costs in (bare, combined, {0: combined}):
        found = ap.costs.actions(graphs, costs)
        assert (found.F, found.B, found.I, found.W) == (2.0, 4.0, 2.0, 2.0)


def test_two_parts_of_one_kind_have_lanes_of_their_own() -> None:
    graphs = traced()
    parts = [Part("F", 0, graphs.forward), Part("B", 0, graphs.backward), Part("B", 0, graphs.backward)]
    plan = combine(parts, "sequential", one_each)
    assert plan.problem.lanes == ("F", "B0", "B1") == tuple(lanes_of(["F", "B", "B"]))
    assert plan.timeline.makespan == 10.0


def test_bytes_are_counted_once_per_storage_and_parameters_left_out() -> None:
    stored = stored_bytes(traced())
    rows = 4 * 8 * 4  # of 8 numbers of 4 bytes
    assert stored.activation == rows + 2 * rows, "the input, and what tanh made"
    assert stored.parameters == 2 * (2 * 8 * 16 * 4), "two weights with their gradients"
    assert stored.output == rows
    costs = ap.costs.actions(traced(), one_each, link_bytes_per_s=rows, latency=0.5)
    assert (costs.activation, costs.parameters, costs.send, costs.latency) == (3 * rows, stored.parameters, 1.0, 0.5)
    assert costs.kept_for_weight == stored.kept_for_weight / stored.activation


def test_exposed_communication_of_a_pair_may_depend_on_both_stages() -> None:
    costs = ap.costs.table(exposed={"FB": lambda forward, backward: forward + 10.0 * backward, "F": 2.0})
    assert costs.exposed_of(Action.parse("(1F1;3B0)OVERLAP_F_B")) == 31.0
    assert costs.exposed_of(Action.parse("1F1")) == 2.0
    with pytest.raises(ap.CostError, match="exposed F is"):
        ap.costs.table(exposed={"F": lambda stage, microbatch: 1.0})


def test_what_is_missing_is_named() -> None:
    graphs = traced()
    with pytest.raises(ap.CostError, match=r"graphs are of stages \[1\]: give those of all stages, from 0 on"):
        ap.costs.actions({1: graphs}, one_each)
    with pytest.raises(ap.CostError, match="no node costs for stage 1; there are some for"):
        ap.costs.actions({0: graphs, 1: graphs}, {0: one_each(graphs.forward) | one_each(graphs.backward)})
    with pytest.raises(ap.CostError, match=r"no cost for .* of B on stage 0: give it as 'B\."):
        ap.costs.actions(graphs, one_each(graphs.forward))
    with pytest.raises(ap.CostError, match="link_bytes_per_s=0: give bytes per second, more than 0"):
        ap.costs.actions(graphs, one_each, link_bytes_per_s=0)
    with pytest.raises(ap.CostError, match="there are graphs of 2 stages and none of stage 3"):
        ap.costs.actions({0: graphs, 1: graphs}, one_each).duration(Action.parse("(3F1;0B0)OVERLAP_F_B"))
    with pytest.raises(ap.GraphError, match="a stage has no graph 'X'"):
        graphs.of_kind("X")
    with pytest.raises(ap.GraphError, match="nothing to combine"):
        combine([])
    assert set(part_costs(Part("I", 0, graphs.of_kind("I")), one_each).seconds) == set(names(graphs.of_kind("I")))


class Halting(nn.Module):
    """A product before and behind an exchange with the other ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.tensor([4])
        return self.second(exchange(self.first(x), rows, rows, 4, self.group))


@pytest.fixture
def halting():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield ap.trace(Halting(dist.group.WORLD), (torch.ones(4, 8, requires_grad=True),))
    finally:
        dist.destroy_process_group()


def four_each(graph: ap.StageGraph) -> ap.NodeCosts:
    """Four seconds for every product and every transfer, of which a quarter is latency, and a half more to issue it."""
    rows = ap.region_table(graph)
    launches = [row.node.name for row in rows if row.kind == "launch"]
    seconds = {row.node.name: 4.0 * row.node.name.startswith(("mm", "exchange")) for row in rows}
    return ap.NodeCosts(seconds, dict.fromkeys(launches, 1.0), dict.fromkeys(launches, 0.5))


def test_a_nano_batch_takes_its_share_of_everything_but_latency_and_issuing(halting: ap.StageGraphs) -> None:
    part = part_costs(Part("F", 0, halting.forward, 0.5), four_each)
    launch = next(row.node.name for row in ap.region_table(halting.forward) if row.kind == "launch")
    assert sorted(value for value in part.seconds.values() if value) == [2.0, 2.0, 1.0 + 3.0 / 2]
    assert (part.latency[launch], part.issue[launch]) == (1.0, 0.5)


def test_nano_batches_of_a_graph_take_what_their_plan_takes_and_hide_what_it_hides(halting: ap.StageGraphs) -> None:
    costs = ap.costs.actions(halting, four_each)
    assert (costs.F, costs.communication["F"], costs.exposed["F"]) == (12.5, 4.0, 4.0)
    plan = combine([Part("F", 0, halting.forward, 0.5)] * 2, "auto", four_each)
    split = Action.parse("3F0/2")
    # 2 computing, 2.5 moving beside 2.5 of the other half, then its own 2.5 and 2.
    assert costs.duration(split) == plan.timeline.makespan < costs.F
    assert (costs.communication_of(split), costs.exposed_of(split)) == (5.0, plan.timeline.exposed_comm)
    assert costs.exposed_of(split) < costs.exposed_of(Action.parse("3F0"))
    pair = Action.parse("(0F1;1B0/2)OVERLAP_F_B")
    lanes = [Part("F", 0, halting.forward), *[Part("B", 0, halting.backward, 0.5)] * 2]
    assert costs.duration(pair) == combine(lanes, "auto", four_each).timeline.makespan


def test_stages_with_the_same_graphs_are_planned_once(halting: ap.StageGraphs) -> None:
    planned = []

    def counting(problem: ap.OverlapProblem) -> list[int]:
        planned.append(problem)
        return list(range(len(problem.nodes)))

    costs = ap.costs.actions({0: halting, 1: halting}, four_each, counting)
    assert costs.duration(Action.parse("0F0/2")) == costs.duration(Action.parse("1F3/2"))
    assert len(planned) == 1


def test_nano_batches_are_chosen_for_real_graphs(halting: ap.StageGraphs) -> None:
    costs = ap.costs.actions(halting, four_each)
    schedule = ap.schedule("1f1b", ranks=2, microbatches=2)
    chosen = ap.with_nano_batches(schedule, costs)
    assert ap.simulate(chosen, costs).makespan < ap.simulate(schedule, costs).makespan
    assert chosen.ranks[0][0].nano_batches == 2
