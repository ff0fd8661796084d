"""Memory of a graph that runs: each value is gone after its last use, as in eager autograd."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import annopipe as ap
from annopipe.ordering.combining import Part
from annopipe.pipeline.calls.module_state import state_of
from annopipe.pipeline.stages.combined import Combined
from annopipe.pipeline.stages.graph_call import GraphCall
from annopipe.pipeline.stages.stage import LocalStage

LAYERS = 5


class Alive(TorchDispatchMode):
    """How many of some tensors are alive when each operation runs."""

    def __init__(self, tensors):
        super().__init__()
        self.refs = [weakref.ref(tensor) for tensor in tensors]
        self.counts = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts.append(sum(ref() is not None for ref in self.refs))
        return func(*args, **(kwargs or {}))


def stage_after(*done, index=0):
    """A stage after some actions of microbatch 0, and what its F saved."""
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(4, 4), nn.GELU())]
    module = nn.Sequential(*layers)
    graphs = ap.trace(module, (torch.ones(3, 4, requires_grad=True),), loss_fn=lambda y, t: (y * t).sum(), target=X)
    stage = LocalStage(index, module, graphs)
    stage.begin_step(state_of(stage.module))
    start(stage, 0)
    result = stage.call("F", 0)
    saved = {name: value for name, value in result.items() if name.startswith("saved") and value.numel() > 1}
    stage.finish("F", 0, [result])
    stage.start_backward(0, {}, {"loss": 1.0})
    for kind in done:
        stage.finish(kind, 0, [stage.call(kind, 0)])
    return stage, saved


X = torch.ones(3, 4)


def start(stage, microbatch):
    stage.start_forward(microbatch, {"input.input": X.clone(), "input.target": X})


def counted(tensors, run):
    mode = Alive(tensors.values())
    tensors.clear()
    with mode:
        run()
    return mode.counts


def test_a_backward_frees_what_it_has_used():
    stage, saved = stage_after()
    assert len(saved) >= 2 * LAYERS - 1
    everything = len(saved)
    counts = counted(saved, lambda: stage.call("B", 0))
    assert counts[0] == everything
    assert counts[-1] <= 1
    assert counts == sorted(counts, reverse=True)


def test_the_input_half_frees_what_the_weight_half_does_not_take():
    stage, saved = stage_after()
    ports = {port.name for port in stage.graphs.of_kind("W").inputs}
    kept = len(saved.keys() & ports)
    assert 0 < kept < len(saved)
    counts = counted(saved, lambda: stage.finish("I", 0, [stage.call("I", 0)]))
    assert counts[-1] <= kept + 1


def test_the_weight_half_frees_what_it_has_used():
    stage, saved = stage_after("I")
    saved = {
        name: value for name, value in saved.items() if name in {port.name for port in stage.graphs.of_kind("W").inputs}
    }
    everything = len(saved)
    counts = counted(saved, lambda: stage.call("W", 0))
    assert (counts[0], counts[-1]) == (everything, min(1, counts[-1]))


@pytest.mark.parametrize("policy", ["list", "alternate", "sequential"])
def test_a_combined_graph_frees_what_each_of_its_parts_has_used(policy):
    stage, saved = stage_after()
    start(stage, 1)
    combined = Combined([Part(kind, 0, stage.graphs.of_kind(kind)) for kind in "FB"], policy, None, None)
    assert counted(saved, lambda: combined([*stage.take("F", 1), *stage.take("B", 0)]))[-1] <= 1
    assert stage.in_flight == 2


def test_a_forward_frees_an_input_that_no_backward_takes():
    class Doubled(nn.Module):
        def forward(self, x):
            return (x * 2).exp().exp().exp()

    stage = LocalStage(0, Doubled(), ap.trace(Doubled(), (X.clone().requires_grad_(),)))
    stage.begin_step(state_of(stage.module))
    values = {"x": X.clone()}
    stage.start_forward(0, {"input.x": values["x"]})
    assert counted(values, lambda: stage.call("F", 0)) == [1, 0, 0, 0]


def test_a_graph_empties_what_it_is_called_with_and_is_itself_unchanged():
    graphs = ap.trace(nn.Linear(2, 3), (torch.ones(1, 2),))
    module = nn.Linear(2, 3)
    values = {**graphs.bind(module), **graphs.bind_inputs(torch.ones(1, 2))}
    expected = graphs.forward(values)
    before = str(graphs.forward.graph)
    (found,) = GraphCall(graphs.forward)(values)
    assert values == {}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert str(graphs.forward.graph) == before
