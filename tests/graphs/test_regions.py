"""Every node has a region, a kind, a lane, a phase, and the rule that gave it its region."""

import collections
import dataclasses
import operator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode

import annopipe as ap
from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.ports import Port
from annopipe.graphs.regions import RegionRow, place
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, PlainMoE
from tests.graphs.modules import Function, leaf, plain

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
CONFIG = DeepSeekV3Config.tiny()
ONE_LAYER = dataclasses.replace(CONFIG, layers=1, experts=4)


def tagged(
    graph: fx.Graph, target: Any, *args: Any, region: str = "", lane: int | None = None, backward: bool = False
) -> fx.Node:
    node = graph.call_function(target, args)
    custom = {**({"annopipe": region} if region else {}), **({} if lane is None else {"annopipe_lane": lane})}
    node.meta.update(custom=custom, partitioner_tag="is_backward" if backward else "is_forward")
    return node


def table(graph: fx.Graph, *outputs: fx.Node, role: Any = "output") -> dict[str, RegionRow]:
    graph.output(outputs)
    x = torch.ones(2, 2)
    ports = [Port.of("input", str(i), x) for i in range(len(graph.find_nodes(op="placeholder")))]
    stage = StageGraph(graph, ports, [Port.of(role, str(i), x) for i in range(len(outputs))])
    return {row.node.name: row for row in ap.region_table(stage)}


@pytest.fixture
def graph() -> fx.Graph:
    return fx.Graph()


# Rules


def test_a_tag_comes_first(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    a = tagged(graph, aten.sin.default, x, region="a")
    b = tagged(graph, aten.cos.default, a, region="b/c", lane=1)
    rows = table(graph, b)
    assert (rows[a.name].region, rows[a.name].rule, rows[a.name].lane) == ("a", "tag", "")
    assert (rows[b.name].region, rows[b.name].rule, rows[b.name].lane) == ("b/c", "tag", "1")


def test_a_wait_belongs_with_its_launch_and_an_item_with_its_operation(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    launch = tagged(graph, c10d.all_reduce.default, x, "sum", "0", region="dispatch", lane=1)
    wait = tagged(graph, c10d.wait_tensor.default, launch)
    pair = tagged(graph, aten.sort.default, wait, region="router")
    item = tagged(graph, operator.getitem, pair, 0)
    rows = table(graph, item)
    assert (rows[wait.name].region, rows[wait.name].rule, rows[wait.name].lane) == ("dispatch", "pair", "1")
    assert (rows[item.name].region, rows[item.name].rule) == ("router", "pair")


def test_a_gradient_sum_joins_the_last_contribution_and_a_lane_only_if_all_are_in_it(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    a = tagged(graph, aten.sin.default, x, region="a", lane=0, backward=True)
    b = tagged(graph, aten.cos.default, x, region="b", lane=0, backward=True)
    c = tagged(graph, aten.exp.default, x, region="c", lane=1, backward=True)
    same = tagged(graph, aten.add.Tensor, b, a, backward=True)
    mixed = tagged(graph, aten.add.Tensor, c, same, backward=True)
    rows = table(graph, mixed, role="input_grad")
    assert (rows[same.name].region, rows[same.name].rule, rows[same.name].lane) == ("b", "gradient sum", "0")
    assert (rows[mixed.name].region, rows[mixed.name].rule, rows[mixed.name].lane) == ("b", "gradient sum", "")


def test_other_nodes_join_their_last_producer_or_else_their_first_consumer(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    early = tagged(graph, aten.neg.default, x, lane=2)
    a = tagged(graph, aten.sin.default, early, region="a")
    b = tagged(graph, aten.cos.default, early, region="b")
    late = tagged(graph, aten.mul.Tensor, b, a)
    rows = table(graph, late)
    assert (rows[early.name].region, rows[early.name].rule, rows[early.name].lane) == ("a", "consumer", "2")
    assert (rows[late.name].region, rows[late.name].rule) == ("b", "producer")


def test_a_model_without_tags_is_one_region(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    a = tagged(graph, aten.sin.default, x, lane=1)
    alone = tagged(graph, aten.cos.default, x)
    rows = table(graph, a, alone)
    assert [(r.region, r.rule) for r in rows.values()] == [("stage", "untagged")] * 2
    assert rows[a.name].lane == "1"


def test_kinds(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    launch = tagged(graph, c10d.all_reduce.default, x, "sum", "0")
    wait = tagged(graph, c10d.wait_tensor.default, launch)
    nothing = tagged(graph, c10d.wait_tensor.default, x)
    read = tagged(graph, aten._local_scalar_dense.default, x)
    find = tagged(graph, aten.nonzero.default, x)
    pick = tagged(graph, aten.index.Tensor, x, [find])
    rows = table(graph, wait, nothing, read, pick)
    kinds = [rows[node.name].kind for node in (launch, wait, nothing, read, find, pick)]
    assert kinds == ["launch", "wait", "compute", "host", "host", "compute"]


# Phases


def test_phases_of_a_backward(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    again = tagged(graph, aten.exp.default, x)
    view = tagged(graph, aten.t.default, x)
    dx = tagged(graph, aten.mul.Tensor, again, x, backward=True)
    launch = tagged(graph, c10d.all_reduce.default, x, "sum", "0", backward=True)
    wait = tagged(graph, c10d.wait_tensor.default, launch, backward=True)
    dw = tagged(graph, aten.mm.default, view, dx, backward=True)
    graph.output((dx, dw))
    one = torch.ones(2, 2)
    ports = [Port.of("input_grad", "x", one), Port.of("param_grad", "w", one)]
    rows = {r.node: r.phase for r in ap.region_table(StageGraph(graph, [Port.of("tangent", "y", one)], ports))}
    assert rows[again] == "recompute"
    assert [rows[n] for n in (dx, launch, wait)] == ["input_grad"] * 3
    assert [rows[n] for n in (view, dw)] == ["weight_grad"] * 2


def test_phases_are_kept_by_the_halves() -> None:
    graphs = ap.trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)), (leaf(1, 2),))
    assert graphs.backward_input is not None
    assert graphs.backward_weight is not None
    assert {r.phase for r in ap.region_table(graphs.backward_input)} == {"input_grad"}
    assert {r.phase for r in ap.region_table(graphs.backward_weight)} == {"weight_grad"}


def test_regions_are_given_once_and_copies_keep_them() -> None:
    graphs = ap.trace(nn.Linear(2, 2), (leaf(1, 2),))
    before = [meta.placed(n) for n in body(graphs.forward.graph)]
    place(graphs.forward)
    assert [meta.placed(n) for n in body(graphs.forward.graph)] == before
    assert [meta.placed(n) for n in body(graphs.forward.copy().graph)] == before


def test_a_node_without_a_region_is_refused(graph: fx.Graph) -> None:
    with pytest.raises(GraphError, match="node sin_default has no region yet"):
        meta.placed(graph.call_function(aten.sin.default, (graph.placeholder("x"),)))


# A real model


@pytest.fixture(scope="module")
def stage(group_of_one: dist.ProcessGroup) -> ap.StageGraphs:
    return ap.trace(DeepSeekV3Stage(CONFIG, group=group_of_one), (leaf(2, 5, CONFIG.hidden),))


def rows_of(graph: StageGraph | None) -> list[RegionRow]:
    assert graph is not None
    return ap.region_table(graph)


def test_every_node_of_the_model_has_a_region_of_its_blocks(stage: ap.StageGraphs) -> None:
    parts = (
        "attention",
        "moe",
        *(f"moe/{p}" for p in ("router", "dispatch", "experts", "combine", "shared", "unpermute")),
    )
    expected = {f"block{n}/{part}" for n in range(CONFIG.layers) for part in parts}
    for graph in (stage.forward, stage.backward):
        assert {row.region for row in rows_of(graph)} == expected
    assert {row.rule for row in rows_of(stage.forward)} == {"tag"}
    assert {row.rule for row in rows_of(stage.backward)} == {"tag", "gradient sum"}


def test_a_layer_has_three_launches_forward_two_backward_and_one_host_read(stage: ap.StageGraphs) -> None:
    forward = collections.Counter(row.kind for row in rows_of(stage.forward))
    backward = collections.Counter(row.kind for row in rows_of(stage.backward))
    layers = CONFIG.layers
    assert (forward["launch"], forward["wait"], forward["host"]) == (3 * layers, 3 * layers, layers)
    assert (backward["launch"], backward["wait"], backward["host"]) == (2 * layers, 2 * layers, 0)
    for graph in (stage.forward, stage.backward):
        for row in rows_of(graph):
            if row.kind in ("launch", "wait"):
                assert row.region.rpartition("/")[2] in ("dispatch", "combine")


def test_weight_gradients_of_the_model_are_known_as_such(stage: ap.StageGraphs) -> None:
    rows = rows_of(stage.backward)
    assert {row.phase for row in rows} == {"input_grad", "weight_grad"}
    targets = {
        phase: [row.node.target for row in rows if row.phase == phase] for phase in ("input_grad", "weight_grad")
    }
    grouped, product = torch.ops.annopipe.grouped_mm_weight_grad.default, aten.mm.default
    products = [module for module in DeepSeekV3Stage(CONFIG).modules() if isinstance(module, nn.Linear)]
    assert targets["weight_grad"].count(grouped) == 2 * CONFIG.layers
    assert grouped not in targets["input_grad"]
    assert torch.ops.annopipe.grouped_mm.default not in targets["weight_grad"]
    assert targets["weight_grad"].count(product) == len(products) + CONFIG.layers  # the router's weight is a parameter
    assert set(targets["weight_grad"]) == {
        product,
        grouped,
        aten.t.default,
        aten.reshape.default,
        aten.mul.Tensor,
        aten.sum.dim_IntList,
    }


def test_a_gradient_sum_lies_in_the_region_of_one_of_its_contributions(stage: ap.StageGraphs) -> None:
    rows = {row.node: row for row in rows_of(stage.backward)}
    sums = [row for row in rows.values() if row.rule == "gradient sum"]
    assert len(sums) >= 5 * CONFIG.layers
    for row in sums:
        sources = [rows[n].region for n in row.node.all_input_nodes if n in rows]
        assert row.region == sources[-1] or row.region in sources


def test_the_shared_experts_do_not_hold_back_the_weight_gradients_of_the_others(stage: ap.StageGraphs) -> None:
    """A region is a label; only data orders nodes."""
    assert stage.backward is not None
    rows = rows_of(stage.backward)
    shared = {row.node for row in rows if row.region.endswith("/shared")}
    for row in rows:
        if row.node.target is torch.ops.annopipe.grouped_mm_weight_grad.default and row.region.startswith("block1"):
            pending, seen = [row.node], set()
            while pending:
                node = pending.pop()
                seen.add(node)
                pending += [n for n in node.all_input_nodes if n not in seen]
            assert not seen & shared


def test_a_model_with_lists_reads_every_size_on_the_host(group_of_one: dist.ProcessGroup) -> None:
    graphs = ap.trace(DeepSeekV3Stage(ONE_LAYER, group=group_of_one, moe=PlainMoE), (leaf(2, 5, CONFIG.hidden),))
    kinds = collections.Counter(row.kind for row in rows_of(graphs.forward))
    assert (kinds["launch"], kinds["host"]) == (3, 2 + ONE_LAYER.experts)


def test_functions_of_others_are_tagged_by_wrapping_and_tags_of_attention_reach_its_backward() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with ap.region("attention"):
            x = self.attention(x, x, x)[0]
        with ap.region("norm"):
            return self.norm(x)

    module = Function(forward, attention=nn.MultiheadAttention(8, 2, batch_first=True), norm=nn.LayerNorm(8))
    graphs = ap.trace(module, (leaf(2, 3, 8),))
    for graph in (graphs.forward, graphs.backward):
        assert {row.region for row in rows_of(graph)} == {"attention", "norm"}


def test_a_graph_without_gradients_has_regions_too() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        with ap.region("only"):
            return x.sin()

    rows = rows_of(ap.trace(Function(forward), (plain(2),)).forward)
    assert [(row.region, row.rule, row.phase) for row in rows] == [("only", "tag", "forward")]


@pytest.mark.parametrize(
    ("source", "options", "kind"),
    [
        ("cuda", {"device": torch.device("cpu")}, "host"),
        ("cuda", {"device": torch.device("cpu"), "non_blocking": True}, "compute"),
        ("cuda", {"dtype": torch.float64}, "compute"),
        ("cpu", {"device": torch.device("cpu")}, "compute"),
    ],
)
def test_a_blocking_copy_from_a_device_is_a_host_read(source: str, options: dict[str, Any], kind: str) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    copy = graph.call_function(aten._to_copy.default, (x,), options)
    with FakeTensorMode():  # needs no such device
        x.meta["val"] = torch.empty(2, 2, device=source)
        copy.meta["val"] = aten._to_copy.default(x.meta["val"], **options)
    assert table(graph, copy)[copy.name].kind == kind
