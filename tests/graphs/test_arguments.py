"""Names of arguments, guards of constants, and calls that do not fit."""

import dataclasses
import functools
import inspect
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError
from annopipe.graphs.arguments import Arguments, flatten_arguments
from tests.graphs.modules import Function, leaf, plain


def flat(function: Any, *args: Any, **kwargs: Any) -> Arguments:
    return flatten_arguments(inspect.signature(function), "f", args, kwargs)


def f(x: Any, *rest: Any, masks: Any = None, scale: float = 2.0, **more: Any) -> None:
    """Something with every kind of parameter."""


X, Y = torch.ones(2), torch.zeros(3)


def test_every_leaf_is_named_after_the_parameter_that_gets_it() -> None:
    call = flat(f, X, Y, 3, masks={"a": [X, None]}, other=(Y,))
    assert call.order == ("x", "rest.0", "rest.1", "masks.a.0", "masks.a.1", "scale", "more.other.0")
    assert call.paths == ("x", "rest.0", "masks.a.0", "more.other.0")
    assert {guard.path: guard.value for guard in call.guards} == {"rest.1": 3, "masks.a.1": None, "scale": 2.0}


def test_a_call_is_put_together_again_with_other_tensors() -> None:
    call = flat(f, X, Y, masks={"a": [X, 1]})
    bound = call.rebuild({"x": Y, "rest.0": X, "masks.a.0": Y})
    assert bound.args[0] is Y
    assert bound.args[1] is X
    assert bound.kwargs["masks"]["a"][1] == 1
    assert call.changed(bound, {"x": Y, "rest.0": X, "masks.a.0": Y}) == []


def test_the_same_call_in_another_spelling_matches() -> None:
    def g(x: Any, y: Any = 3) -> None:
        """Two parameters."""

    assert flat(g, X).matched(flat(g, y=3, x=Y)) == {"x": Y}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flat(f, X, Y), r"another structure than the traced one \(it differs at rest.0\): trace again"),
        (lambda: flat(f, X, masks={"a": X}), r"it differs at masks, masks.a"),
        (lambda: flat(f, X, scale=3.0), "argument scale was 2.0 when the module was traced and is 3.0 now"),
        (lambda: flat(f, X, scale=2), "argument scale was 2.0 .* and is 2 now"),
        (lambda: flat(f, X, scale=X), r"argument scale was 2.0 .* and is tensor\(\[1., 1.\]\) now"),
        (lambda: flat(f, None), "argument x was a tensor when the module was traced and is None now"),
    ],
)
def test_a_call_that_differs_is_refused(call: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        flat(f, X).matched(call())


class Options:
    """A plain object with attributes, also deep ones."""

    def __init__(self, k: float, *deep: Any) -> None:
        self.k = k
        self.deep = {"list": list(deep)}


CONSTANTS: dict[str, tuple[Any, Any, Any]] = {  # traced, an equal one, another
    "not a number": (float("nan"), float("nan"), 0.0),
    "zero and minus zero": (0.0, 0.0, -0.0),
    "one and true": (1, 1, True),
    "text": ("a", "a", "b"),
    "none": (None, None, False),
    "complex": (1 + 2j, 1 + 2j, 1 - 2j),
    "dtype": (torch.float32, torch.float32, torch.float64),
    "device": (torch.device("cpu"), torch.device("cpu"), torch.device("meta")),
    "array": (np.arange(3), np.arange(3), np.arange(1, 4)),
    "array of another type": (np.arange(3), np.arange(3), np.arange(3.0)),
    "array of objects": (
        np.array([1, "a"], dtype=object),
        np.array([1, "a"], dtype=object),
        np.array([1, "b"], object),
    ),
    "number of numpy": (np.float32(1), np.float32(1), np.float64(1)),
    "set": ({1, 2}, {2, 1}, {1, 3}),
    "slice": (slice(0, 2), slice(0, 2), slice(0, 3)),
    "range": (range(3), range(3), range(4)),
    "function": (torch.relu, torch.relu, torch.tanh),
    "partial": (functools.partial(F.gelu, approximate="none"), functools.partial(F.gelu, approximate="none"), F.gelu),
    "partial with other arguments": (functools.partial(max, 1), functools.partial(max, 1), functools.partial(max, 2)),
    "class": (int, int, float),
    "object": (Options(1, 2), Options(1, 2), Options(1, 3)),
    "object with an object": (Options(1, Options(2)), Options(1, Options(2)), Options(1, Options(3))),
    "bytes": (b"a", b"a", b"b"),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_compared_by_what_it_holds(name: str) -> None:
    traced, equal, other = CONSTANTS[name]
    guard = flat(f, X, masks=traced).guards[0]
    guard.check(traced)
    guard.check(equal)
    with pytest.raises(CaptureError, match="argument masks was .* trace again with this value, or pass a tensor"):
        guard.check(other)


@pytest.mark.parametrize("change", [lambda o: setattr(o, "k", 5), lambda o: o.deep["list"].append(1)])
def test_a_constant_that_has_changed_inside_is_refused(change: Any) -> None:
    options = Options(1, 2)
    graphs = ap.trace(Function(lambda _, x, o: x * o.k), (leaf(2), options))
    graphs.bind_inputs(plain(2), options)
    change(options)
    with pytest.raises(CaptureError, match="argument rest.0 was <.* and is changed inside now"):
        graphs.bind_inputs(plain(2), options)


def test_an_object_that_holds_itself_can_be_a_constant() -> None:
    options, other = Options(1), Options(1)
    options.deep["self"], other.deep["self"] = options, other  # type: ignore[assignment]
    guard = flat(f, X, masks=options).guards[0]
    guard.check(other)
    other.k = 2
    with pytest.raises(CaptureError):
        guard.check(other)


@dataclasses.dataclass
class Batch:
    """A container that PyTorch does not know."""

    x: Any


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (Batch(X), r"masks.x"),
        (Batch({"a": [1, X]}), r"masks.x\['a'\]\[1\]"),
        (nn.Linear(2, 2), "masks"),
        (nn.Linear(2, 2).forward, "masks"),
        (functools.partial(max, X), r"masks\[0\]"),
    ],
)
def test_a_constant_that_holds_a_tensor_or_a_module_is_refused(value: Any, where: str) -> None:
    with pytest.raises(
        CaptureError, match=rf"masks is a \w+ and holds a tensor or a module \({where}\), which the graph"
    ):
        flat(f, X, masks=value)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (X.as_subclass(type("Mine", (Tensor,), {})), "Mine"),
        (X.to_sparse(), "tensor of layout torch.sparse_coo"),
        (torch.nested.nested_tensor([X, Y]), "Tensor"),
    ],
    ids=["subclass", "sparse", "nested"],
)
def test_a_tensor_that_is_not_plain_is_refused(tensor: Tensor, kind: str) -> None:
    with pytest.raises(CaptureError, match=f"argument x is a {kind}: only plain tensors can be stage inputs"):
        flat(f, tensor)


def test_arguments_with_one_name_are_refused() -> None:
    with pytest.raises(CaptureError, match="two arguments are called x.0: use other dictionary keys"):
        flat(f, {"0": X, 0: Y})


def test_a_call_that_does_not_fit_the_signature_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"the arguments do not fit Linear.forward\(input: .*missing a required"):
        ap.trace(nn.Linear(2, 2), ())
    with pytest.raises(
        CaptureError, match=r"args is a tuple of positional arguments, got Tensor; for one argument: \(x,\)"
    ):
        ap.trace(nn.Linear(2, 2), X)  # type: ignore[arg-type]
    graphs = ap.trace(nn.Linear(2, 2), (X,))
    with pytest.raises(CaptureError, match="the arguments do not fit the traced call"):
        graphs.bind_inputs(X, y=3)


def test_a_function_may_be_an_argument() -> None:
    graphs = ap.trace(Function(lambda _, x, g: g(x)), (leaf(2), torch.relu))
    assert torch.equal(graphs.forward(graphs.bind_inputs(-X, torch.relu))["output"], torch.zeros(2))
