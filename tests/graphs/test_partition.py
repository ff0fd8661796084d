"""What crosses from forward to backward, and what stays where."""

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn

import annopipe as ap
from annopipe.graphs import meta
from annopipe.graphs.ops import launch_of, traits
from annopipe.graphs.stage_graph import body
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import Function, buffered, leaf, plain

aten = torch.ops.aten


def saved(graphs: ap.StageGraphs) -> list[str]:
    return [p.name for p in graphs.forward.outputs if p.role in ("saved", "size")]


def test_without_anything_to_differentiate_there_is_no_backward() -> None:
    graphs = ap.trace(nn.Linear(3, 3).requires_grad_(False), (plain(2, 3),))
    assert (graphs.backward, graphs.backward_input, graphs.backward_weight) == (None, None, None)
    assert saved(graphs) == []


def test_forward_and_backward_have_their_ports() -> None:
    graphs = ap.trace(nn.Linear(3, 2), (leaf(4, 3),))
    assert graphs.backward is not None
    assert [p.name for p in graphs.forward.inputs] == ["param.weight", "param.bias", "input.input"]
    assert [p.name for p in graphs.forward.outputs] == ["output", "saved.input.input"]
    assert [p.name for p in graphs.backward.inputs] == ["param.weight", "tangent.output", "saved.input.input"]
    assert [p.name for p in graphs.backward.outputs] == ["param_grad.weight", "param_grad.bias", "input_grad.input"]


def test_what_a_graph_does_not_use_is_no_port_of_it() -> None:
    module = Function(lambda s, x, y: s.a(x), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    graphs = ap.trace(module, (leaf(2, 3), leaf(2, 3)))
    assert [p.name for p in graphs.forward.inputs] == ["param.a.weight", "param.a.bias", "input.x"]
    assert graphs.backward is not None
    assert not any("b." in p.name or "rest" in p.name for p in (*graphs.backward.inputs, *graphs.backward.outputs))


def test_a_view_of_a_parameter_is_made_again_and_not_saved() -> None:
    module = Function(lambda s, x: torch.sin(x @ s.w.view(3, 4).t()), w=nn.Parameter(torch.randn(12)))
    graphs = check_against_eager(module, (leaf(2, 4),))
    assert saved(graphs) == ["saved.input.x", "saved.mm"]
    assert "param.w" in {p.name for p in graphs.backward.inputs}


def test_two_views_of_one_value_are_saved_once() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x.exp() * 2
        return torch.sin(y.view(-1)).sum() + torch.cos(y.t()).sum() + y.sin().sum()

    graphs = check_against_eager(Function(forward), (leaf(2, 3),))
    assert saved(graphs) == ["saved.exp", "saved.mul"]


def test_no_two_saved_values_share_memory_with_each_other_or_a_parameter() -> None:
    stage = DeepSeekV3Stage(dataclasses.replace(DeepSeekV3Config.tiny(), layers=1))
    graphs = ap.trace(stage, (leaf(2, 5, 32),))
    values = {**graphs.bind(stage), **graphs.bind_inputs(plain(2, 5, 32))}
    out = graphs.forward(values)
    addresses = [out[name].untyped_storage().data_ptr() for name in saved(graphs) if isinstance(out[name], Tensor)]
    bound = {t.untyped_storage().data_ptr() for t in (*stage.parameters(), *stage.buffers())}
    assert len(set(addresses)) == len(addresses)
    assert not bound & set(addresses)


def test_an_output_that_is_saved_is_two_ports_of_one_value() -> None:
    graphs = ap.trace(Function(lambda _, x: x.exp()), (leaf(3),))
    out = graphs.forward(graphs.bind_inputs(plain(3)))
    assert out["output"] is out["saved.exp"]


def test_sizes_that_depend_on_data_are_size_ports() -> None:
    def forward(self: Any, x: Tensor, counts: Tensor) -> Tensor:
        return torch.cat([part.sin() for part in x.split(counts.tolist())])

    graphs = ap.trace(Function(forward), (leaf(6, 4), torch.tensor([2, 4])))
    sizes = [p for p in graphs.forward.outputs if p.role == "size"]
    assert sizes
    assert all(p.dtype is None for p in sizes)


def test_random_numbers_nobody_uses_are_drawn_in_the_graph_they_were_traced_in() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        torch.rand(3)
        return F.dropout(x, 0.5)

    graphs = check_against_eager(Function(forward), (leaf(3),))
    assert sum(traits(node).random for node in body(graphs.forward.graph)) == 2
    assert not any(traits(node).random for node in body(graphs.backward.graph))


def test_old_values_of_an_updated_buffer_are_copied_for_the_backward_only_where_it_needs_them() -> None:
    def needed(self: Any, x: Tensor) -> Tensor:
        y = self.linear(x).view(-1) * self.n.expand(2, 3).reshape(-1)  # a copy that can be made again
        with torch.no_grad():
            self.n += 1
        return y

    def unneeded(self: Any, x: Tensor) -> Tensor:
        y = self.linear(x) + self.n
        with torch.no_grad():
            self.n += 1
        return y

    for forward, copies in ((needed, 1), (unneeded, 0)):
        graphs = check_against_eager(buffered(forward, n=torch.ones(3)), (leaf(2, 3),))
        assert len(graphs.forward.graph.find_nodes(op="call_function", target=aten.clone.default)) == copies
        assert not any(p.role == "buffer" for p in graphs.backward.inputs)


def test_waits_stay_with_launches_and_items_with_their_operation(group_of_one: dist.ProcessGroup) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        received = functional.all_to_all_single_autograd(self.linear(x), [2], [2], group_of_one)
        return F.layer_norm(received.sin(), (3,)).chunk(3, -1)[0]

    graphs = check_against_eager(Function(forward, linear=nn.Linear(3, 3)), (leaf(2, 3),))
    for graph in (graphs.forward, graphs.backward):
        nodes = body(graph.graph)
        launches = [n for n in nodes if traits(n).launch]
        assert len(launches) == 1
        assert [launch_of(n) for n in nodes if traits(n).wait] == launches
        assert not any(isinstance(meta.value(n), (list, tuple)) for n in graph.graph.find_nodes(op="placeholder"))


def test_recomputed_nodes_do_not_exist_and_the_backward_runs_on_what_was_saved() -> None:
    graphs = ap.trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), (leaf(2, 3),))
    assert graphs.backward is not None
    assert {p.role for p in graphs.backward.inputs} == {"param", "saved", "tangent"}
    assert not graphs.backward.graph.find_nodes(op="call_function", target=aten.addmm.default)
