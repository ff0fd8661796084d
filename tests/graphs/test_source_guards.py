"""A Python value that a strict trace read and that has changed since is refused when the graphs are bound."""

import collections
import copy
import enum
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError
from annopipe.graphs.source_guards import SourceGuard, user_name
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import leaf

K = 3
CONFIG: dict[str, Any] = {"scale": 2, "deep": {"bias": 5}}
TABLE = torch.ones(3)


class Mode(enum.Enum):
    ADD = 1
    KEEP = 2


class Options:
    power = 2

    def __init__(self) -> None:
        self.factor = 0.5
        self.mode = Mode.ADD
        self.name = "gelu"


def times(n: Any) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return x if n is None else x * n

    return scaled


def with_default(x: Tensor, exponent: int = 2) -> Tensor:
    return x**exponent


class Reader(nn.Module):
    """Reads a Python value of every kind."""

    rate = 7

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Dropout(0.25)])
        setattr(self.layers[0], "depth", 2)  # noqa: B010 (an attribute that Linear does not declare)
        self.n, self.steps, self.bias = 2, [1, 2], None
        self.options, self.scaled, self.absent = Options(), times(5), times(None)
        self.mask = torch.tensor([1.0, 0.0, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x) * self.n * K * CONFIG["deep"]["bias"] + self.rate + TABLE
        if "offset" in CONFIG:
            x = x + CONFIG["offset"]
        if self.options.mode is Mode.ADD and self.options.name == "gelu":
            x = x * self.options.factor + self.options.power
        for layer in self.layers:
            x = layer(x)
        for step in self.steps:
            x = x + step
        if self.bias is not None:
            x = x + self.bias
        if hasattr(self, "late"):
            x = x * 2
        return with_default(self.absent(self.scaled(x)) * self.layers[0].depth * self.mask)


Change = Callable[[pytest.MonkeyPatch, Reader], Any]
HERE = "tests.graphs.test_source_guards"
CHANGES: dict[str, tuple[Change, str]] = {
    "number": (lambda p, m: p.setattr(m, "n", 3), "self.n was 2 when the module was traced and is 3 now"),
    "type of a number": (lambda p, m: p.setattr(m, "n", 2.0), "self.n was 2 when the module was traced and is 2.0 now"),
    "in a submodule": (lambda p, m: p.setattr(m.layers[0], "depth", 4), "self.layers[0].depth was 2 * is 4 now"),
    "of torch's module": (lambda p, m: p.setattr(m.layers[1], "p", 0.5), "self.layers[1].p was 0.25 * is 0.5 now"),
    "global": (lambda p, _: p.setitem(globals(), "K", 4), f"global K of {HERE} was 3 * is 4 now"),
    "entry": (
        lambda p, _: p.setitem(CONFIG["deep"], "bias", 1),
        f"global CONFIG['deep']['bias'] of {HERE} was 5 * is 1 now",
    ),
    "new entry": (
        lambda p, _: p.setitem(CONFIG, "offset", 1),
        f"global CONFIG of {HERE} was without the key 'offset' * is with the key 'offset' now",
    ),
    "class attribute": (lambda p, m: p.setattr(type(m), "rate", 8), "self.rate was 7 * is 8 now"),
    "class attribute, hidden": (lambda p, m: p.setattr(m, "rate", 8, raising=False), "self.rate was * now"),
    "attribute of an object": (
        lambda p, m: p.setattr(m.options, "factor", 1.5),
        "self.options.factor was 0.5 * is 1.5 now",
    ),
    "class attribute of an object": (
        lambda p, _: p.setattr(Options, "power", 3),
        "self.options.power was 2 * is 3 now",
    ),
    "enumeration": (
        lambda p, m: p.setattr(m.options, "mode", Mode.KEEP),
        "self.options.mode was <Mode.ADD: 1> * is <Mode.KEEP: 2> now",
    ),
    "text": (lambda p, m: p.setattr(m.options, "name", "relu"), "self.options.name was 'gelu' * is 'relu' now"),
    "length": (lambda p, m: p.setattr(m, "steps", [1, 2, 3]), "self.steps was of length 2 * is of length 3 now"),
    "item": (lambda _, m: m.steps.__setitem__(1, 5), "self.steps[1] was 2 * is 5 now"),
    "None": (lambda p, m: p.setattr(m, "bias", 3), "self.bias was None * is 3 now"),
    "closure": (lambda p, m: p.setattr(m, "scaled", times(6)), "closure variable n of scaled was 5 * is 6 now"),
    "None in a closure": (
        lambda p, m: p.setattr(m, "absent", times(6)),
        "closure variable n of scaled was None * is 6 now",
    ),
    "default": (
        lambda p, _: p.setattr(with_default, "__defaults__", (3,)),
        "the default of exponent of with_default was 2 * is 3 now",
    ),
    "function": (lambda p, m: p.setattr(m, "scaled", torch.relu), "self.scaled was times.<locals>.scaled * now"),
    "global function": (
        lambda p, _: p.setitem(globals(), "with_default", torch.relu),
        f"global with_default of {HERE} was * now",
    ),
    "class of a submodule": (
        lambda _, m: setattr(m, "linear", nn.Identity()),
        "self.linear was of type Linear * is of type Identity now",
    ),
    "attribute that was not there": (lambda p, m: p.setattr(m, "late", 1, raising=False), "self * late * now"),
    "hook": (
        lambda _, m: m.linear.register_forward_hook(lambda *_: None),
        "self.linear._forward_hooks was of length 0 * now",
    ),
    "tensor that is no buffer": (
        lambda p, m: p.setattr(m, "mask", torch.zeros(3)),
        "self.mask was a tensor * another one, now",
    ),
    "global tensor": (
        lambda p, _: p.setitem(globals(), "TABLE", torch.zeros(3)),
        f"global TABLE of {HERE} was a tensor * now",
    ),
    "gone": (lambda p, m: p.delattr(m, "n"), "self.n was 2 when the module was traced and is gone"),
    "patched forward": (
        lambda p, m: p.setattr(m.linear, "forward", torch.relu, raising=False),
        "self.linear.forward was its class's * is the object's own now",
    ),
}


@pytest.fixture(scope="module")
def traced() -> tuple[Reader, Any]:
    module = Reader()
    return module, ap.trace(module, (leaf(2, 3),), strict=True)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_value_is_refused_by_its_source(name: str, traced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (module, graphs), (change, message) = traced, CHANGES[name]
    module = copy.deepcopy(module)
    graphs.bind(module)
    change(monkeypatch, module)
    expected = ".*".join(re.escape(part) for part in message.split("*"))
    with pytest.raises(CaptureError, match=rf"^{expected}; the graphs hold for the traced value only: trace again$"):
        graphs.bind(module)


def test_a_value_outside_of_the_module_is_checked_with_the_inputs_too(
    traced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, graphs = traced
    graphs.bind_inputs(leaf(2, 3))
    monkeypatch.setitem(globals(), "K", 4)
    with pytest.raises(CaptureError, match="global K"):
        graphs.bind_inputs(leaf(2, 3))


def test_an_equal_copy_of_the_module_is_fine(traced: Any) -> None:
    module, graphs = traced
    check_against_eager(copy.deepcopy(module), (leaf(2, 3),), graphs=graphs)


def test_a_value_that_forward_does_not_read_may_change(traced: Any) -> None:
    module, graphs = copy.deepcopy(traced[0]), traced[1]
    module.unrelated = 3
    graphs.bind(module)


def test_a_traced_value_follows_into_the_new_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Reader()
    monkeypatch.setattr(module, "n", 9)
    check_against_eager(module, (x := leaf(2, 3),), graphs=ap.trace(module, (x,), strict=True))


def test_a_method_that_its_class_has_anew_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.doubled(self.linear(x))

        def doubled(self, x: Tensor) -> Tensor:
            return x * 2

    module = Doubling()
    graphs = ap.trace(module, (leaf(2, 3),), strict=True)
    for cls, name, told in ((Doubling, "doubled", "self.doubled"), (nn.Linear, "forward", "self.linear.forward")):
        graphs.bind(module)
        with monkeypatch.context() as patch:
            patch.setattr(cls, name, lambda _, x: x)
            with pytest.raises(CaptureError, match=rf"^{re.escape(told)} was its class's .* another one, now"):
                graphs.bind(module)


def test_one_object_in_two_places_stays_one_object() -> None:
    class ByMode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mode, self.factors = Mode.ADD, {Mode.ADD: 2.0, Mode.KEEP: 3.0}

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factors[self.mode]

    module = ByMode()
    graphs = ap.trace(module, (leaf(3),), strict=True)
    check_against_eager(copy.deepcopy(module), (leaf(3),), graphs=graphs)
    module.mode = Mode.KEEP
    by_value = "was <Mode.ADD: 1> .* is <Mode.KEEP: 2> now"  # PyTorch 2.11 guards each place by its value
    with pytest.raises(CaptureError, match=rf"self.mode (is .* was True .* is False now|{by_value})"):
        graphs.bind(module)


@pytest.mark.parametrize("change", [lambda p: p.double(), lambda p: p.requires_grad_(False), lambda p: p[:2]])
def test_what_forward_reads_of_a_parameter_is_guarded_also_if_it_computes_nothing_with_it(change: Any) -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            known = self.weight.dtype == torch.float32 and self.weight.requires_grad and len(self.weight) == 3
            return x * (2 if known else 3)

    module = Asking()
    graphs = ap.trace(module, (leaf(3),), strict=True)
    graphs.bind(module)
    module.weight = nn.Parameter(change(module.weight.data), requires_grad=change(module.weight).requires_grad)
    with pytest.raises(CaptureError, match=r"self.weight was of torch.float32, shape \(3,\), and requires grad .* now"):
        graphs.bind(module)


def test_a_class_of_a_closure_can_be_what_forward_returns() -> None:
    pair = collections.namedtuple("pair", "a b")  # noqa: PYI024
    module = nn.Linear(3, 3)
    module.register_forward_hook(lambda _, __, y: pair(y, None))
    check_against_eager(module, (leaf(2, 3),), graphs=ap.trace(module, (leaf(2, 3),), strict=True))


def test_values_around_a_loss_are_guarded() -> None:
    weight = 2.0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) * weight).sum()

    module, target = nn.Linear(3, 3), torch.ones(2, 3)
    graphs = ap.trace(module, (leaf(2, 3),), loss_fn=loss, target=target, strict=True)
    graphs.bind_inputs(leaf(2, 3), target=target)
    weight = 3.0
    with pytest.raises(CaptureError, match="closure variable weight of loss was 2.0 .* is 3.0 now"):
        graphs.bind_inputs(leaf(2, 3), target=target)
    with pytest.raises(CaptureError, match="closure variable weight of loss"):
        graphs.bind(module)


def test_the_class_of_an_argument_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaling(nn.Module):
        def forward(self, x: Tensor, options: Options) -> Tensor:
            return x * options.power

    options = Options()
    graphs = ap.trace(Scaling(), (leaf(3), options), strict=True)
    graphs.bind_inputs(leaf(3), options)
    monkeypatch.setattr(Options, "power", 5)
    with pytest.raises(CaptureError, match="argument options.power was 2 .* is 5 now"):
        graphs.bind_inputs(leaf(3), options)


def test_direct_traces_have_no_such_guards() -> None:
    module = Reader()
    graphs = ap.trace(module, (leaf(2, 3),))
    assert graphs.sources.guards == ()
    module.n = 3
    graphs.bind(module)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['self'].n", "self.n"),
        ("L['self']._modules['layers']._modules['0']._parameters['w']", "self.layers[0].w"),
        ("dict(type(L['self']._modules['a']).__dict__)['rate']", "self.a.rate"),
        ("type(L['self']).__mro__[1].__dict__['rate']", "self.rate"),
        ("G['__import_my_dot_layers'].K['a']", "global K['a'] of my.layers"),
        ("L['loss_fn'].scale", "loss_fn.scale"),
        ("(L['self'].mode) is (L['self'].options.mode)", "self.mode is self.options.mode"),
    ],
)
def test_sources_are_told_as_users_write_them(source: str, name: str) -> None:
    assert user_name(source, {}) == name


def test_a_value_that_changed_inside_is_told_so() -> None:
    held = functools.partial(max, [Options()])
    scope = {"L": {"self": held}}
    guard = SourceGuard.of("L['self']", "value", None, scope)
    guard.check(scope)
    held.args[0][0].factor = 9
    with pytest.raises(CaptureError, match="changed inside"):
        guard.check(scope)
