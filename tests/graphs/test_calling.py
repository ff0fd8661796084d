"""What a forward may not do to its module, its arguments and its outputs, and how the message says so."""

import dataclasses
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import Function, leaf


@dataclasses.dataclass
class Batch:
    x: Tensor


def refuse(match: str, function: Any, *args: Any, **attributes: Any) -> Function:
    module = Function(function, **attributes)
    with pytest.raises(CaptureError, match=match):
        ap.trace(module, args or (leaf(2),))
    return module


def test_what_forward_keeps_on_the_module_is_refused_and_put_back() -> None:
    def keep(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(x)
        self.options["last"] = x
        self.last = x
        return x * 2

    module = refuse(
        "Function.forward changes calls, last, options.last, seen on the module", keep, calls=0, seen=[], options={}
    )
    assert (module.calls, module.seen, module.options, hasattr(module, "last")) == (0, [], {}, False)


def test_what_forward_changes_before_it_fails_is_put_back() -> None:
    def fail(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        raise ValueError("out of luck")

    module = refuse("cannot trace Function: out of luck", fail, calls=0)
    assert module.calls == 0


def test_a_counter_on_the_class_is_refused_and_put_back() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return x * 2

    with pytest.raises(CaptureError, match="Counting.forward changes Counting.calls on the module"):
        ap.trace(Counting(), (leaf(2),))
    assert Counting.calls == 0


def test_rebinding_a_parameter_a_buffer_or_a_submodule_is_refused() -> None:
    def rebind_parameter(self: Any, x: Tensor) -> Tensor:
        self.w = nn.Parameter(torch.ones(2))
        return x * self.w

    def rebind_buffer(self: Any, x: Tensor) -> Tensor:
        self.b = self.b + 1
        return x * self.b

    def add_submodule(self: Any, x: Tensor) -> Tensor:
        self.late = nn.Identity()
        return x * 2

    def add_hook(self: Any, x: Tensor) -> Tensor:
        self.inner.register_forward_hook(lambda *_: None)
        return x * 2

    w = nn.Parameter(torch.zeros(2))
    assert refuse("changes w on the module", rebind_parameter, w=w).w is w
    module = Function(rebind_buffer)
    module.register_buffer("b", b := torch.zeros(2))
    with pytest.raises(CaptureError, match="changes b on the module.*update a buffer in place"):
        ap.trace(module, (leaf(2),))
    assert module.b is b
    assert not hasattr(refuse("changes late on the module", add_submodule), "late")
    assert not refuse(r"changes inner._forward_hooks.\[\d+\]", add_hook, inner=nn.Identity()).inner._forward_hooks


def test_setting_an_attribute_to_what_it_was_is_fine() -> None:
    def remember(self: Any, x: Tensor) -> Tensor:
        self.shape = (x.shape[0], x.shape[1])
        return x * 2

    module = Function(remember)
    module(leaf(2, 3))
    check_against_eager(module, (leaf(2, 3),))


@pytest.mark.parametrize(
    "change",
    [
        lambda argument: argument["list"].append(3),
        lambda argument: argument.update(more=3),
        lambda argument: setattr(argument["object"], "calls", 1),
    ],
    ids=["list", "dictionary", "object"],
)
def test_what_forward_changes_in_its_arguments_is_refused(change: Any) -> None:
    def forward(_: Any, x: Tensor, state: Any) -> Tensor:
        change(state)
        return x * 2

    state = {"list": [1], "object": Function(lambda *_: None)._forward_hooks.__class__()}
    state["object"] = type("State", (), {})()
    refuse(r"forward changes what argument rest.* holds: a graph cannot replay that", forward, leaf(2), state)


def test_an_argument_that_is_changed_in_place_is_refused() -> None:
    refuse(
        "forward changes argument x in place: a stage may only update its buffers",
        lambda _, x: x.add_(1),
        torch.ones(2),
    )
    refuse(
        "forward changes argument x in place",
        lambda s, x: (x[0].add_(1), s.w * x)[1],
        torch.ones(2),
        w=nn.Parameter(torch.ones(2)),
    )


def test_a_parameter_that_is_changed_in_place_is_refused() -> None:
    def update(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.add_(1)
        return x * self.w

    module = refuse("forward changes parameter w in place", update, w=nn.Parameter(torch.ones(2)))
    assert torch.equal(module.w, torch.ones(2))


def test_a_buffer_that_is_updated_with_a_gradient_is_refused() -> None:
    def update(self: Any, x: Tensor) -> Tensor:
        self.b.add_((self.w * x).mean())
        return x * self.w

    module = Function(update, w=nn.Parameter(torch.ones(2)))
    module.register_buffer("b", torch.zeros(2))
    with pytest.raises(CaptureError, match="forward updates buffer b with a value that requires grad"):
        ap.trace(module, (leaf(2),))


def test_buffers_that_share_memory_are_refused_where_one_is_updated() -> None:
    def update(self: Any, x: Tensor) -> Tensor:
        self.whole.add_(1)
        return x * self.part

    module = Function(update)
    module.register_buffer("whole", torch.zeros(4))
    module.register_buffer("part", module.whole[:2])
    with pytest.raises(
        CaptureError, match="buffer part shares memory with another one, and forward updates one of them"
    ):
        ap.trace(module, (leaf(2),))


def test_a_number_that_depends_on_data_is_no_output() -> None:
    refuse(
        "output.1 is a number that depends on data: return it as a tensor", lambda _, x: (x * 2, x.nonzero().shape[0])
    )


def test_outputs_that_hide_tensors_are_refused() -> None:
    refuse(r"output is a Batch and holds a tensor or a module \(output.x\)", lambda _, x: Batch(x * 2))


def test_outputs_with_one_name_are_refused() -> None:
    refuse("two outputs are called output.0: use other dictionary keys", lambda _, x: {"0": x, 0: x * 2})


def test_a_loss_that_is_no_scalar_tensor_is_refused() -> None:
    for loss in (lambda o, _: o, lambda o, _: 3.0):
        with pytest.raises(CaptureError, match="loss_fn returns one scalar tensor"):
            ap.trace(nn.Linear(2, 2), (leaf(2, 2),), loss_fn=loss)


def test_draws_of_other_generators_are_refused() -> None:
    import numpy as np

    refuse("Function.forward draws from Python's random: that happens while tracing", lambda _, x: x * random.random())
    refuse("Function.forward draws from numpy.random", lambda _, x: x * float(np.random.rand()))  # noqa: NPY002
    for generator in (random.Random(3), np.random.default_rng(3)):
        refuse("Function.forward changes own on the module", lambda s, x: x * float(s.own.random()), own=generator)


def test_seeding_and_forking_the_generator_are_refused() -> None:
    def seed(_: Any, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return x * torch.rand(2)

    def fork(_: Any, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            return x * torch.rand(2)

    refuse("Function.forward seeds torch's generator", seed)
    refuse("Function.forward sets the state of torch's generator", fork)


def test_an_own_generator_of_torch_is_part_of_the_graph() -> None:
    generator = torch.Generator()
    module = Function(lambda _, x: x * torch.rand(2, generator=generator))
    if torch.__version__.startswith("2.11."):
        with pytest.raises(CaptureError, match=r"a generator of its own, .*; draw from the default generator"):
            ap.trace(module, (leaf(2),))
        pytest.skip("graphs of PyTorch 2.11 hold no generator: it is refused by name")
    graphs = ap.trace(module, (leaf(2),))
    generator.manual_seed(3)
    found = graphs.forward(graphs.bind_inputs(torch.ones(2)))["output"]
    generator.manual_seed(3)
    assert torch.equal(found, torch.rand(2, generator=generator))
