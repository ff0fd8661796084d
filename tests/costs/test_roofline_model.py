"""Roofline costs: hand-computed nodes, every node of the shipped models, and what the user may assume."""

import dataclasses
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import annopipe as ap
from annopipe.costs import NodeLimit
from annopipe.graphs.capture import without_memory
from annopipe.kernels.grouped_mm import grouped_mm
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, MoE, PlainMoE
from tests.costs.toy import TOY, fake_ranks, seconds_of, traced


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def cost(function, operation: str, *tensors: torch.Tensor, **options) -> float:
    graph = traced(Call(function), *tensors)
    return seconds_of(graph, operation, ap.costs.roofline(graph, TOY, **options))


def moe_stage(ranks: int = 4, moe: type[MoE] = MoE, tokens: int = 16) -> ap.StageGraphs:
    with fake_ranks(ranks) as group:
        stage = DeepSeekV3Stage(DeepSeekV3Config.tiny(), layers=[1], group=group, device="meta", moe=moe)
        return ap.trace(stage, (torch.empty(1, tokens, 32, device="meta", requires_grad=True),))


def test_a_large_product_is_bound_by_its_operations() -> None:
    a = torch.empty(1000, 1000, device="meta")
    assert cost(torch.mm, "aten.mm", a, a) == pytest.approx(2 * 1000**3 / 1e12)


def test_a_thin_product_is_bound_by_memory() -> None:
    a, b = torch.empty(1000, 1, device="meta"), torch.empty(1, 1000, device="meta")
    assert cost(torch.mm, "aten.mm", a, b) == pytest.approx(4 * (1000 + 1000 + 1000**2) / 1e11)


def test_a_batched_product_in_bfloat16_uses_that_peak() -> None:
    a = torch.empty(4, 1000, 1000, device="meta", dtype=torch.bfloat16)
    assert cost(torch.bmm, "aten.bmm", a, a) == pytest.approx(4 * 2 * 1000**3 / 4e12)


@pytest.mark.parametrize("causal", [False, True])
def test_causal_attention_counts_half_the_square(causal: bool) -> None:
    with without_memory():
        q = torch.empty(1, 2, 1024, 64)
    flops = 2 * 2 * (2 * 1024 * 1024 * 64) / (2 if causal else 1)
    found = cost(
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=causal),
        "aten._scaled_dot_product_flash_attention_for_cpu",
        q,
    )
    assert found == pytest.approx(flops / 0.5e12)


def test_the_backward_of_attention_takes_five_products_where_the_forward_takes_two() -> None:
    with without_memory():
        q = torch.empty(1, 2, 1024, 64, requires_grad=True)
    graphs = ap.trace(Call(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), (q,))
    assert graphs.backward is not None
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    forward = seconds_of(graphs.forward, name, ap.costs.roofline(graphs.forward, TOY))
    backward = seconds_of(graphs.backward, f"{name}_backward", ap.costs.roofline(graphs.backward, TOY))
    assert backward == pytest.approx(2.5 * forward)


def test_a_grouped_product_counts_each_row_once() -> None:
    rows, weight = torch.empty(512, 256, device="meta"), torch.empty(4, 256, 128, device="meta")
    counts = torch.empty(4, dtype=torch.int64, device="meta")
    found = cost(grouped_mm, "annopipe.grouped_mm", rows, weight, counts)
    assert found == pytest.approx(2 * 512 * 256 * 128 / 1e12)


def test_an_elementwise_operation_reads_and_writes_each_value_once() -> None:
    a = torch.empty(1000, 1000, device="meta")
    assert cost(torch.add, "aten.add", a, a[:1]) == pytest.approx(4 * (2 * 1000**2 + 1000) / 1e11)


def test_an_expanded_tensor_is_read_once() -> None:
    a, b = torch.empty(1000, 1000, device="meta"), torch.empty(1, device="meta")
    assert cost(lambda x, y: x + y.expand(1000, 1000), "aten.add", a, b) == pytest.approx(4 * (2e6 + 1) / 1e11)


def test_picking_rows_reads_the_rows_and_not_the_table() -> None:
    table, index = torch.empty(10**6, 8, device="meta"), torch.empty(10, dtype=torch.int64, device="meta")
    found = cost(lambda t, i: t.index_select(0, i), "aten.index_select", table, index)
    assert found == pytest.approx((2 * 10 * 8 * 4 + 10 * 8) / 1e11)


def test_a_kernel_costs_its_launch_and_a_view_nothing() -> None:
    graph = traced(Call(lambda x: x.t() + 1), torch.empty(2, 3, device="meta"))
    costs = ap.costs.roofline(graph, dataclasses.replace(TOY, kernel_launch_s=1.0))
    assert seconds_of(graph, "aten.t", costs) == 0
    assert seconds_of(graph, "aten.add", costs) == pytest.approx(1.0)


def test_an_all_to_all_over_two_nodes_is_bound_by_the_share_that_leaves_the_node() -> None:
    with fake_ranks(16) as group:
        x = torch.empty(1600, 100, device="meta")
        graph = traced(Call(lambda t: fc.wait_tensor(fc.all_to_all_single(t, None, None, group))), x)
        costs = ap.costs.roofline(graph, TOY)
    (launch,) = costs.latency
    assert costs.latency[launch] == pytest.approx(2e-6 + 1e-5)
    assert costs.seconds[launch] == pytest.approx(costs.latency[launch] + 4 * 1600 * 100 * 8 / 16 / 1e9)
    assert costs.issue == {launch: 3e-6}
    (wait,) = [row.node.name for row in ap.region_table(graph) if row.kind == "wait"]
    assert costs.seconds[wait] == 0


def test_a_group_that_nobody_knows_is_asked_for() -> None:
    with fake_ranks(16) as group:
        graph = traced(Call(lambda t: fc.wait_tensor(fc.all_reduce(t, "sum", group))), torch.empty(8, device="meta"))
        expected = ap.costs.roofline(graph, TOY)
    with pytest.raises(ap.CostError, match=r"all_reduce runs on process group '0'.*ranks=\{\"0\": 64\}"):
        ap.costs.roofline(graph, TOY)
    assert ap.costs.roofline(graph, TOY, ranks=16) == ap.costs.roofline(graph, TOY, ranks={"0": 16}) == expected
    apart = ap.costs.roofline(graph, TOY, ranks=16, nodes={"0": 16})
    assert sum(apart.seconds.values()) > sum(expected.seconds.values())


def test_a_group_size_that_contradicts_the_trace_is_refused() -> None:
    graphs = moe_stage(ranks=4)
    with pytest.raises(ap.CostError, match="group '0' has 8 ranks, but the graph was traced with 4"):
        ap.costs.roofline(graphs.forward, TOY, ranks={"0": 8})
    with pytest.raises(ap.CostError, match="give whole numbers"):
        ap.costs.roofline(graphs.forward, TOY, ranks=0)
    with pytest.raises(ap.CostError, match="all_to_all_single: a group of 4 ranks cannot lie on 9 nodes"):
        ap.costs.roofline(graphs.forward, TOY, nodes={"0": 9})


@pytest.mark.parametrize("moe", [MoE, PlainMoE])
@pytest.mark.parametrize("fused", [False, True])
def test_every_node_of_every_graph_of_a_dropless_layer_has_a_finite_cost(moe, fused: bool) -> None:
    graphs = moe_stage(moe=moe)
    both = ap.multiplex(graphs.forward, graphs.backward, lanes=("F", "B"))
    for graph in (graphs.forward, graphs.backward, graphs.backward_input, graphs.backward_weight, both):
        costs = ap.costs.roofline(graph, "h100", fused=fused)  # NodeCosts refuses what is negative or not finite
        rows = ap.region_table(graph)
        assert len(costs.seconds) == len(rows)
        launches = [row for row in rows if row.kind == "launch"]
        assert len(costs.latency) == len(costs.issue) == len(launches)
        assert all(0 < costs.latency[key] <= costs.seconds[key] for key in costs.latency)
        assert sum(costs.seconds.values()) > 0
    ap.overlap(both, policy="list", costs=costs)


def test_a_lane_costs_what_its_graph_costs() -> None:
    graphs = moe_stage()
    both = ap.multiplex(graphs.forward, graphs.backward, lanes=("F", "B"))
    apart = ap.costs.roofline(graphs.forward, TOY).in_lane("F") | ap.costs.roofline(graphs.backward, TOY).in_lane("B")
    assert ap.costs.roofline(both, TOY) == apart


def test_the_same_arguments_give_the_same_costs() -> None:
    assert ap.costs.roofline(moe_stage().forward, "h800") == ap.costs.roofline(moe_stage().forward, "h800")


def test_a_dense_model_with_embedding_and_head_has_costs_on_meta() -> None:
    stage = DeepSeekV3Stage(DeepSeekV3Config.tiny(), layers=[0, 1], embed=True, head=True, device="meta")
    graphs = ap.trace(stage, (torch.zeros(1, 8, dtype=torch.int64, device="meta"),))
    for graph in (graphs.forward, graphs.backward):
        assert len(ap.costs.roofline(graph, "b200").seconds) == len(ap.region_table(graph))


def test_a_host_read_costs_the_time_until_the_host_has_the_value() -> None:
    graph = moe_stage().forward
    costs = ap.costs.roofline(graph, TOY)
    reads = [row.node.name for row in ap.region_table(graph) if row.kind == "host"]
    assert len(reads) == 1
    assert costs.seconds[reads[0]] == pytest.approx(1e-4)


def test_more_rows_than_balanced_cost_more_wherever_they_are_given() -> None:
    graphs = moe_stage()
    (symbol,) = {str(size) for port in graphs.backward_weight.inputs for size in port.shape if isinstance(size, str)}
    (port,) = [port.name for port in graphs.backward.inputs if port.role == "size"]
    balanced, skewed = (ap.costs.roofline(graphs.backward, TOY, sizes=sizes) for sizes in (None, {symbol: 640}))
    assert sum(skewed.seconds.values()) > sum(balanced.seconds.values())
    assert ap.costs.roofline(graphs.backward, TOY, sizes={port: 640}) == skewed
    assert ap.costs.roofline(graphs.backward, TOY, sizes={symbol: 32}) == balanced, "16 tokens, 2 experts each"


def test_a_skew_multiplies_what_balanced_routing_gives_and_leaves_given_sizes_alone() -> None:
    graphs = moe_stage()
    (symbol,) = {str(size) for port in graphs.backward_weight.inputs for size in port.shape if isinstance(size, str)}
    skewed = ap.costs.roofline(graphs.backward, TOY, skew=2.5)
    assert skewed == ap.costs.roofline(graphs.backward, TOY, sizes={symbol: 80}), "2.5 times 32 rows"
    assert skewed == ap.costs.roofline(graphs.backward, TOY, sizes={symbol: 80}, skew=4)
    assert ap.costs.roofline(graphs.backward, TOY, skew=1) == ap.costs.roofline(graphs.backward, TOY)


@pytest.mark.parametrize("skew", [0.5, True, "2", float("nan"), float("inf")])
def test_a_skew_below_even_is_refused(skew: object) -> None:
    with pytest.raises(ap.CostError, match="give how many times its even share the busiest rank gets, 1 or more"):
        ap.costs.roofline(moe_stage().forward, TOY, skew=skew)


def test_sizes_of_one_lane_leave_the_other_alone() -> None:
    graphs = moe_stage()
    both = ap.multiplex(graphs.forward, graphs.backward, lanes=("F", "B"))
    (port,) = [port.name for port in both.inputs if port.role == "size"]
    assert port.startswith("B.")
    forward = ap.costs.roofline(graphs.forward, TOY).in_lane("F")
    backward = ap.costs.roofline(graphs.backward, TOY, sizes={port.removeprefix("B."): 640}).in_lane("B")
    assert ap.costs.roofline(both, TOY, sizes={port: 640}) == forward | backward


def test_a_size_that_balance_does_not_tell_is_asked_for_by_node_and_name() -> None:
    graph = traced(Call(lambda x: x.nonzero().float() * 2), torch.ones(4, 4))
    with pytest.raises(ap.CostError, match="the size of nonzero depends on data") as caught:
        ap.costs.roofline(graph, TOY)
    (symbol,) = re.findall(r'pass sizes=\{"(u\d+)": \.\.\.\}', str(caught.value))
    assert sum(ap.costs.roofline(graph, TOY, sizes={symbol: 7}).seconds.values()) > 0


@pytest.mark.parametrize("strict", [False, True])
def test_all_sizes_that_balance_does_not_tell_are_asked_for_at_once_with_the_place_and_the_way(strict: bool) -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        with ap.region("router"):
            return x.nonzero().float().sum() + (x > 1).nonzero().float().sum()

    graph = ap.trace(Call(two), (torch.ones(4, 4),), strict=strict).forward
    both = ap.multiplex(graph, graph, lanes=("a", "b"))
    with pytest.raises(ap.CostError, match=r"\(u\d, in region router\).*ap.overlap the result as costs") as caught:
        ap.overlap(both, policy="list")
    assert (f"at {__file__}:" in str(caught.value)) == strict, "only Dynamo keeps lines"
    names = re.findall(r'"(u\d+)": \.\.\.', str(caught.value))
    assert len(names) == 2
    plan = ap.overlap(both, costs=ap.costs.roofline(both, TOY, sizes=dict.fromkeys(names, 7)))
    assert plan.timeline.makespan > 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"v9": 3}, "sizes has 'v9', which no value"), ({"u0": -1}, "a size is a whole number"), ({"u0": 1.5}, "whole")],
)
def test_a_size_of_nothing_is_refused(sizes, message: str) -> None:
    with pytest.raises(ap.CostError, match=message):
        ap.costs.roofline(traced(Call(lambda x: x.nonzero() + 1), torch.ones(4)), TOY, sizes=sizes)


def test_eight_bit_products_take_half_of_sixteen_bit_ones_and_leave_wider_ones_alone() -> None:
    def pair(dtype: torch.dtype) -> list[float]:
        a = torch.empty(1000, 1000, device="meta", dtype=dtype)
        return [cost(torch.mm, "aten.mm", a, a, matmul_dtype=narrow) for narrow in (None, torch.float8_e4m3fn)]

    traced_s, narrow_s = pair(torch.bfloat16)
    assert narrow_s == pytest.approx(traced_s / 2)
    traced_s, narrow_s = pair(torch.float32)
    assert narrow_s == traced_s


def test_bytes_on_the_wire_are_given_by_region_and_direction() -> None:
    graphs = moe_stage(tokens=4096)

    def exchange_s(graph: ap.StageGraph, region: str, **options) -> float:
        costs = ap.costs.roofline(graph, TOY, **options)
        rows = [r for r in ap.region_table(graph) if r.kind == "launch" and r.region.endswith(region)]
        return costs.seconds[rows[-1].node.name] - costs.latency[rows[-1].node.name]

    halved = {"wire_bytes": {"dispatch": {"forward": 2}, "combine": 1}}
    for graph, region, share in (
        (graphs.forward, "dispatch", 0.5),
        (graphs.backward, "dispatch", 1.0),
        (graphs.forward, "combine", 0.25),
        (graphs.backward, "combine", 0.25),
    ):
        assert exchange_s(graph, region, **halved) == pytest.approx(share * exchange_s(graph, region))
    wrongs: tuple[Any, ...] = (0, {"forwards": 1}, {"forward": "1"})
    for wrong in wrongs:
        with pytest.raises(ap.CostError, match=r"wire_bytes\['dispatch'\] is .*: give bytes per element"):
            ap.costs.roofline(graphs.forward, TOY, wire_bytes={"dispatch": wrong})


def test_what_is_no_graph_or_no_type_is_refused() -> None:
    graph = traced(nn.ReLU(), torch.empty(2, device="meta"))
    with pytest.raises(ap.GraphError, match="roofline takes a stage graph, got GraphModule"):
        ap.costs.roofline(graph.module, TOY)
    with pytest.raises(ap.CostError, match="matmul_dtype is 'fp8': give a type of torch"):
        ap.costs.roofline(graph, TOY, matmul_dtype="fp8")


def test_node_limited_routing_sends_one_row_per_node() -> None:
    with fake_ranks(32) as group:
        x = torch.empty(3200, 100, device="meta")
        graph = traced(Call(lambda t: fc.wait_tensor(fc.all_to_all_single(t, None, None, group))), x)
    costs = ap.costs.roofline(graph, TOY, node_limit=NodeLimit(copies=8, nodes=2))
    (launch,) = costs.latency
    moved = costs.seconds[launch] - costs.latency[launch]
    assert moved == pytest.approx(4 * 3200 * 100 * (2 / 8) * (3 / 4) / 1e9)
    with pytest.raises(ap.CostError, match="1 <= nodes <= copies"):
        NodeLimit(copies=2, nodes=3)


def test_fused_operations_move_only_what_enters_and_leaves() -> None:
    graph = traced(Call(lambda x: (x.sigmoid() * x).t() + 1), torch.empty(1000, 1000, device="meta"))
    fused = sum(ap.costs.roofline(graph, TOY, fused=True).seconds.values())
    apart = sum(ap.costs.roofline(graph, TOY).seconds.values())
    assert fused == pytest.approx(4 * 2e6 / 1e11), "x is read, the result is written"
    assert apart == pytest.approx(4 * (2e6 + 3e6 + 2e6) / 1e11)


def test_a_type_without_a_peak_names_the_node() -> None:
    a = torch.empty(2, 2, device="meta", dtype=torch.float64)
    with pytest.raises(ap.CostError, match="mm: hardware 'toy' has no peak for float64, only for float32"):
        cost(torch.mm, "aten.mm", a, a)


def test_the_network_is_passed_on() -> None:
    network = ap.NodeCosts({}).network.__class__(interference=0.25)
    costs = ap.costs.roofline(traced(nn.ReLU(), torch.empty(2, device="meta")), "a100", network=network)
    assert costs.network == network
    assert costs.source == "roofline of a100"


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 64), st.integers(0, 64), st.sampled_from(["cpu", "a100", "h800"]))
def test_costs_never_fall_with_size(rows: int, more: int, hardware: str) -> None:
    def costs(count: int) -> dict[str, float]:
        module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
        graph = traced(module.to("meta"), torch.empty(count, 16, device="meta"))
        return dict(ap.costs.roofline(graph, hardware).seconds)

    small, large = costs(rows), costs(rows + more)
    assert small.keys() == large.keys()
    assert all(small[key] <= large[key] for key in small)


def test_costs_do_not_depend_on_the_group_being_there() -> None:
    graphs = moe_stage()
    assert not dist.is_initialized()
    without = ap.costs.roofline(graphs.forward, "h800")
    with fake_ranks(4):
        assert ap.costs.roofline(graphs.forward, "h800") == without


@pytest.mark.parametrize("option", ["sizes", "wire_bytes", "collectives", "node_limit", "network"])
def test_an_option_of_another_kind_is_refused_by_name(option: str) -> None:
    with pytest.raises(ap.CostError, match=f"{option} is 3"):
        ap.costs.roofline(traced(nn.ReLU(), torch.empty(2, device="meta")), TOY, **{option: 3})
