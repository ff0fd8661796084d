"""What cannot be traced, bound or called is refused: the message names the thing, the place and the remedy."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import annopipe as ap
from tests.graphs.test_stages import Function, given


def keeps_value(self: Any, x: Tensor) -> Tensor:
    self.last = x
    return x * 2


def counts(self: Any, x: Tensor) -> Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return x * 2


def grows_list(self: Any, x: Tensor) -> Tensor:
    self.history.append(1)
    return x * 2


def rebinds_buffer(self: Any, x: Tensor) -> Tensor:
    self.scale = self.scale * 2
    return x * self.scale


def changes_parameter(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.weight.mul_(2)
    return x * self.weight


def branches(self: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x


HISTORY: list[int] = []
FORWARDS: dict[str, tuple[Any, str]] = {
    "keeps a value": (lambda: Function(keeps_value), "forward changes last on the module"),
    "counts": (lambda: Function(counts), "forward changes calls on the module"),
    "grows a list": (lambda: Function(grows_list, history=[]), "forward changes history on the module"),
    "rebinds a buffer": (lambda: Function(rebinds_buffer, scale=torch.ones(4)), "forward changes scale on the module"),
    "changes a parameter": (
        lambda: Function(changes_parameter, weight=nn.Parameter(torch.ones(4))),
        "forward changes parameter weight in place",
    ),
    "changes an argument": (lambda: Function(lambda s, x: x.detach().add_(1) + x), "changes argument"),
    "branches on data": (lambda: Function(branches), r"at .*test_refusals.py:\d+, in branches: if x.sum\(\) > 0:"),
    "uses numpy": (lambda: Function(lambda s, x: torch.from_numpy(x.detach().numpy()) * x), "cannot trace Function"),
    "draws from Python": (lambda: Function(lambda s, x: x * random.random()), "draws from Python's random"),
    "no differentiable output": (lambda: Function(lambda s, x: x.argmax()), "no output depends on them"),
    "fails": (lambda: Function(lambda s, x: s.missing(x)), "has no attribute 'missing'"),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_that_a_graph_cannot_replay_is_refused(name: str) -> None:
    build, message = FORWARDS[name]
    module = build()
    before = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    with pytest.raises(ap.CaptureError, match=message):
        ap.trace(module, (given(3, 4),))
    assert before == {key: value for key, value in vars(module).items() if not key.startswith("_")}
    assert getattr(module, "history", []) == []


def test_another_number_than_the_traced_one_is_refused() -> None:
    graphs = ap.trace(Function(lambda s, x, k=2: x * k), (given(2, 4),), {"k": 2})
    with pytest.raises(ap.CaptureError, match="k.* was 2 when the module was traced and is 3 now"):
        graphs.bind_inputs(given(2, 4), k=3)
    values = graphs.bind_inputs(given(2, 4), k=2)
    with pytest.raises(ap.CaptureError, match="k.* was 2"):
        graphs.forward({**values, "input.kwargs.k": 3, "input.k": 3, "k": 3})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3, 4), r"port input.input: expected shape \(2, 4\), got \(3, 4\)"),
        (torch.ones(2, 4, dtype=torch.float64), "port input.input: expected torch.float32, got torch.float64"),
        (3, "port input.input: expected a tensor, got int"),
    ],
)
def test_a_value_that_does_not_fit_its_port_is_refused(value: Any, message: str) -> None:
    module = nn.Linear(4, 3)
    graphs = ap.trace(module, (torch.ones(2, 4),))
    with pytest.raises(ap.GraphError, match=message):
        graphs.forward({**graphs.bind(module), "input.input": value})


def test_missing_values_are_named() -> None:
    graphs = ap.trace(nn.Linear(4, 3), (torch.ones(2, 4),))
    with pytest.raises(ap.GraphError, match="no value for 1 of 3 input ports: input.input"):
        graphs.forward(graphs.bind(nn.Linear(4, 3)))


def test_a_module_that_does_not_fit_is_refused() -> None:
    graphs = ap.trace(nn.Linear(4, 3), (torch.ones(2, 4),))
    with pytest.raises(ap.GraphError, match="has no param 'bias'"):
        graphs.bind(nn.Linear(4, 3, bias=False))
    with pytest.raises(ap.GraphError, match="param weight: expected shape"):
        graphs.bind(nn.Linear(5, 3))


def test_arguments_that_do_not_fit_the_signature_are_refused() -> None:
    with pytest.raises(ap.CaptureError, match="do not fit Linear.forward"):
        ap.trace(nn.Linear(4, 3), ())
    with pytest.raises(ap.CaptureError, match="args is a tuple"):
        ap.trace(nn.Linear(4, 3), torch.ones(2, 4))  # type: ignore[arg-type]
    with pytest.raises(ap.CaptureError, match="pass loss_fn too"):
        ap.trace(nn.Linear(4, 3), (torch.ones(2, 4),), target=torch.ones(2))


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(ap.CaptureError, match="one scalar tensor"):
        ap.trace(nn.Linear(4, 3), (torch.ones(2, 4),), loss_fn=lambda out, target: out, target=None)


def test_lanes_and_ports_that_are_wrong_are_refused() -> None:
    forward = ap.trace(nn.Linear(4, 3), (torch.ones(2, 4),)).forward
    for lanes in (["F"], ["F", "F"], ["F", "1"], ["F", "a.b"]):
        with pytest.raises(ap.GraphError, match="lane"):
            ap.multiplex(forward, forward, lanes=lanes)
    with pytest.raises(ap.GraphError):
        ap.multiplex()
    with pytest.raises(ap.GraphError, match="no output port 'nobody'"):
        ap.extract(forward, ["nobody"])
    with pytest.raises(ap.GraphError, match="no port 'nobody'"):
        forward.port("nobody")
