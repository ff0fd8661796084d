import torch
from torch import nn

import annopipe as ap
from annopipe.pipeline.stages.liveness import gradient_needs, only_live, returning_gradients


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.both = nn.Linear(2, 2), nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.left(x * self.both), self.right(x * self.both)


def traced():
    return ap.trace(Two(), (torch.ones(1, 2, requires_grad=True),))


def test_a_gradient_needs_those_of_the_outputs_that_its_value_reaches():
    needs = gradient_needs(traced().backward)
    assert needs["param_grad.left.weight"] == {"output.0"}
    assert needs["param_grad.right.bias"] == {"output.1"}
    assert needs["param_grad.both"] == needs["input_grad.x"] == {"output.0", "output.1"}


def test_only_gradients_that_a_loss_reaches_are_kept():
    graphs = traced()
    assert only_live(graphs, frozenset({"output.0", "output.1"})) is graphs
    kept = only_live(graphs, frozenset({"output.1"}))
    names = {port.name for port in kept.backward.outputs}
    assert names == {"param_grad.right.weight", "param_grad.right.bias", "param_grad.both", "input_grad.x"}
    assert only_live(graphs, frozenset()).backward is None


def test_liveness_goes_back_through_all_stages():
    ports = [["a", "b"], ["c", "d"], []]
    reached = frozenset({"c"}), frozenset({"d"})
    needs = [[], [*reached], [frozenset({"loss"}), None]]
    chain = ap.placement.linear(3)
    assert returning_gradients(chain, needs, ports) == {(0, 1): (0,), (1, 2): (0,)}
    auxiliary = [[], [frozenset({"auxiliary_loss"}), frozenset({"c"})], [None, None]]
    assert returning_gradients(chain, auxiliary, ports) == {(0, 1): (0,), (1, 2): ()}


def test_an_output_is_differentiated_when_one_of_the_stages_that_take_it_does_or_something_outside():
    skip = ap.placement.custom([0, 0, 0], edges=[(0, 1), (0, 2), (1, 2)])
    ports, loss = [["a"], ["b"], ["c"]], frozenset({"loss"})
    needs = [[], [frozenset({"b"})], [loss, None]]  # of a from stage 0, and of b from stage 1
    assert returning_gradients(skip, needs, ports) == {(0, 1): (), (0, 2): (0,), (1, 2): ()}
    inside = [[], [frozenset({"b"})], [None, frozenset({"c"})]]
    assert returning_gradients(skip, inside, ports) == {(0, 1): (), (0, 2): (), (1, 2): ()}
    outside = [frozenset(), frozenset(), frozenset({"c"})]
    assert returning_gradients(skip, inside, ports, outside) == {(0, 1): (0,), (0, 2): (), (1, 2): (0,)}
