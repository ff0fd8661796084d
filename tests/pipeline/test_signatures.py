"""What makes a pipeline be traced again, how much of it is kept, and when its user is told."""

import gc
import itertools
import warnings
import weakref

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.pipeline import running
from annopipe.pipeline.calls import prepared as prepared_module
from annopipe.pipeline.calls.signatures import key_of
from annopipe.pipeline.pipeline import Pipeline
from annopipe.pipeline.stages.stage import LocalStage


class Powered(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, power=1, mask=None, names=()):
        return self.inner(x) * power


def one(name="gpipe", stages=None):
    made = stages if stages is not None else [Powered()]
    return Pipeline(made, ap.schedule(name, ranks=1, microbatches=2), loss_fn=lambda y, t: (y * t).sum())


X = torch.ones(4, 4)


@pytest.fixture
def prepared(monkeypatch):
    """How often a pipeline was prepared."""
    found = []
    original = running.prepare
    monkeypatch.setattr(running, "prepare", lambda *args, **named: found.append(args) or original(*args, **named))
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (None, False),
        ("1", 1),
        ([1], (1,)),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2).double()),
        (torch.ones(2), torch.ones(2, requires_grad=True)),
        (torch.ones(2), None),
        ((torch.ones(2), [None]), (torch.ones(2), None)),
        (torch.Size([2]), (2,)),
        (slice(1), slice(2)),
    ],
)
def test_arguments_that_make_another_graph_have_another_key(one, other):
    assert key_of(one) != key_of(other)
    assert key_of((one, 3)) != key_of((other, 3))


@pytest.mark.parametrize("make", [lambda: float("nan"), lambda: {"a": [torch.randn(2), (1, "x")]}, lambda: slice(1)])
def test_arguments_that_make_the_same_graph_have_the_same_key(make):
    assert key_of(make()) == key_of(make())
    assert hash(key_of(make())) == hash(key_of(make()))


def test_a_constant_that_changes_each_step_is_named_once_and_its_graphs_are_not_kept(monkeypatch):
    monkeypatch.setattr(prepared_module, "_MOST", 3)
    pipe = one()
    stages = []
    original = LocalStage.__init__

    def noted(stage, *args, **options):
        stages.append(weakref.ref(stage))
        original(stage, *args, **options)

    monkeypatch.setattr(LocalStage, "__init__", noted)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for power in range(7):
            pipe.step(X, target=X, power=power, names=("a", "b"))
    (told,) = [warning for warning in found if "traced again" in str(warning.message)]
    assert "power has had 5 values, the last ones 2, 3, 4, " in str(told.message)
    assert "pass it as a tensor" in str(told.message)
    assert told.filename == __file__
    gc.collect()
    assert len(stages) == 7
    assert sum(ref() is not None for ref in stages) == 3


def test_a_tensor_in_its_place_is_traced_once(prepared):
    pipe = Pipeline(
        [Powered()],
        ap.schedule("gpipe", ranks=1, microbatches=2),
        loss_fn=lambda y, t: (y * t).sum(),
        batch_dims={"power": None},
    )
    for power in range(7):
        pipe.step(X, target=X, power=torch.tensor(power))
    assert len(prepared) == 1


def test_a_few_constants_and_shapes_are_no_reason_to_warn(prepared):
    pipe = one()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _, power, rows in itertools.product(range(2), (1, 2), (2, 4, 6, 8, 10, 12)):
            x = torch.ones(rows, 4)
            pipe.step(x, target=x, power=power)
    assert len(prepared) == 12


def test_plans_are_those_of_the_last_step():
    pipe = one("dualpipev", [Powered(), Powered()])
    assert pipe.plans() == {}
    found = []
    for rows in (4, 6, 4):
        x = torch.ones(rows, 4)
        pipe.step(x, target=x)
        found.append(pipe.plans())
    pipe.eval(X)
    assert pipe.plans() == found[2]
    first, second = (plans[("F", 1), ("B", 0)] for plans in found[:2])
    assert first is found[2][("F", 1), ("B", 0)]
    assert first is not second


def changes():
    yield "a mode", lambda m: m.inner.eval()
    yield "a dtype", lambda m: m.double()
    yield "requires_grad", lambda m: m.inner.bias.requires_grad_(False)
    yield "a tied parameter", lambda m: setattr(m.second, "weight", m.inner.weight)
    yield "another shape", lambda m: setattr(m.second, "bias", nn.Parameter(torch.zeros(1)))
    yield "a buffer more", lambda m: m.register_buffer("more", torch.ones(2))
    yield "a parameter less", lambda m: setattr(m.second, "bias", None)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.inner(x.to(self.inner.weight.dtype)))


@pytest.mark.parametrize(("what", "change"), list(changes()))
def test_a_module_that_changes_is_traced_again_and_its_gradients_are_right(what, change, prepared):
    module = Two()
    pipe = one(stages=[module])
    pipe.step(X, target=X)
    change(module)
    module.zero_grad()
    pipe.step(X, target=X)
    assert len(prepared) == 2
    own = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    (module(X) * X).sum().backward()
    for name, parameter in module.named_parameters():
        assert (own[name] is None) == (parameter.grad is None)
        assert own[name] is None or torch.allclose(own[name], parameter.grad)


@pytest.mark.parametrize("how", ["whole", "data"])
def test_a_parameter_that_is_replaced_is_used_and_the_old_one_not_kept(how, prepared):
    module = Two()
    pipe = one(stages=[module])
    pipe.step(X, target=X)
    old = weakref.ref(module.inner.weight)
    if how == "whole":
        module.inner.weight = nn.Parameter(torch.ones(4, 4))
    else:
        module.inner.weight.data = torch.ones(4, 4)
        module.inner.weight.grad = None
    gc.collect()
    assert (old() is None) == (how == "whole")
    (loss, _) = pipe.step(X, target=X)
    assert loss == (module(X[:2])).sum()
    assert module.inner.weight.grad is not None
    assert len(prepared) == 1
