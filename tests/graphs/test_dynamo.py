"""Strict tracing gives the graphs of direct tracing, guards what they hold for, and refuses what they cannot replay."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError, GraphError
from tests.graphs.helpers import assert_same, check_against_eager
from tests.graphs.modules import Function, buffered, leaf, plain
from tests.graphs.strict_cases import TAGGED, rows
from tests.graphs.test_tracing import MODULES, OUTPUTS, experts_by_list, running_mean

SEEN: list[Any] = []
COUNTS = {"calls": 0}


def names(graphs: Any) -> list[tuple[Any, ...]]:
    parts = [graphs.forward, *([graphs.backward] if graphs.backward else [])]
    return [(p.name, p.role, str(p.shape), p.dtype) for part in parts for p in (*part.inputs, *part.outputs)]


def strict(module: nn.Module, *args: Any, **options: Any) -> Any:
    return ap.trace(module, args, strict=True, **options)


# The same graphs


@pytest.mark.parametrize("name", [*TAGGED, *MODULES])
def test_both_ways_give_the_same_ports_and_the_same_region_table(name: str) -> None:
    if name == "tensor hook" and torch.__version__.startswith("2.11."):
        pytest.skip("PyTorch 2.11: Dynamo saves a view of what a hook is on, the same values under another name")
    module, args = (TAGGED.get(name) or MODULES[name])()
    direct, found = ap.trace(module, args), strict(module, *args)
    assert names(found) == names(direct)
    assert rows(found.forward) == rows(direct.forward)
    assert rows(found.backward) == rows(direct.backward)


@pytest.mark.parametrize("name", [*TAGGED, "batch norm", "dropout", "autocast inside", "module hooks", "LoRA", "item"])
def test_values_gradients_and_random_state_are_those_of_eager(name: str) -> None:
    module, args = (TAGGED.get(name) or MODULES[name])()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    graphs = strict(module, *args)
    assert torch.equal(torch.get_rng_state(), state)
    check_against_eager(module, args, graphs=graphs)


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_every_kind(name: str) -> None:
    module, x = Function(OUTPUTS[name]), leaf(3, 4)
    check_against_eager(module, (x,), graphs=strict(module, x))


def test_trees_none_keywords_and_constants_pass() -> None:
    class Everything(nn.Module):
        def forward(self, batch: Any, *rest: Tensor, scale: float = 2.0, mask: Any = None, **more: Any) -> Any:
            y = batch["x"] * scale + batch["pair"][1]
            for one in rest:
                y = y + one
            y = y if mask is None else y.masked_fill(mask, 0)
            for name in sorted(more):
                y = y * more[name]
            return {"y": y, "none": None, 3: "text", "list": [y.sum(), (1.5, True)]}

    args = ({"x": leaf(2, 3), "pair": (None, leaf(2, 3))}, leaf(2, 3))
    for kwargs in ({}, {"mask": torch.eye(2, 3).bool(), "u": leaf(2, 3), "v": 3}):
        graphs = ap.trace(Everything(), args, kwargs, strict=True)
        check_against_eager(Everything(), args, kwargs, graphs=graphs)
    with pytest.raises(CaptureError, match=r"argument more.v was 3 .* is 4 now"):
        graphs.bind_inputs(*args, **{**kwargs, "v": 4})


def test_one_trace_serves_splits_of_0_1_and_many() -> None:
    module = Function(experts_by_list, w=nn.Parameter(torch.randn(3, 4, 4)))
    graphs = strict(module, leaf(6, 4), torch.tensor([2, 2, 2]))
    for counts in ([1, 2, 3], [0, 0, 6], [6, 0, 0], [0, 1, 5], [2, 2, 2]):
        check_against_eager(module, (leaf(6, 4), torch.tensor(counts)), graphs=graphs)


def test_one_trace_of_a_mixture_of_experts_serves_any_routing() -> None:
    module, args = TAGGED["plain mixture of experts"]()
    graphs = strict(module, *args)
    for scale in (0.0, 1.0, 30.0):
        check_against_eager(module, (leaf(2, 5, 32).detach().mul(scale).requires_grad_(),), graphs=graphs, idle=True)


@pytest.mark.parametrize(
    "loss_fn", [F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)], ids=["function", "module"]
)
def test_a_loss_is_part_of_the_capture(loss_fn: Any) -> None:
    module, x, target = nn.Linear(3, 4), leaf(5, 3), torch.tensor([0, 1, 2, 3, -100])
    graphs = strict(module, x, loss_fn=loss_fn, target=target)
    check_against_eager(module, (x,), graphs=graphs, loss_fn=loss_fn, target=target)


def test_buffer_updates_are_outputs() -> None:
    module, x = buffered(running_mean, n=torch.zeros(3)), leaf(3, 3)
    check_against_eager(module, (x,), graphs=strict(module, x))


def test_one_tensor_for_two_arguments_stays_two_inputs() -> None:
    x = leaf(3, 3)
    graphs = strict(Function(lambda _, x, y: x * y), x, x)
    a, b = plain(3, 3), plain(3, 3)
    assert_same(graphs.forward(graphs.bind_inputs(a, b))["output"], a * b)


def test_other_captures_of_the_process_have_no_influence() -> None:
    module = nn.Linear(3, 2)
    for size in (2, 3, 4):
        assert strict(module, leaf(size, 3)).forward.port("input.input").shape == (size, 3)
    torch.compile(module, backend="eager", dynamic=True)(leaf(5, 3))
    assert strict(module, leaf(6, 3)).forward.port("input.input").shape == (6, 3)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_module_without_memory_is_captured_like_one_with(device: str) -> None:
    def layers() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.1))

    with torch.device(device), torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        module, x = layers(), torch.randn(2, 4).requires_grad_()
    assert rows(strict(module, x).backward) == rows(strict(layers(), leaf(2, 4)).backward)


def test_a_module_that_computes_nothing_is_fine() -> None:
    x = leaf(2)
    check_against_eager(nn.Identity(), (x,), graphs=strict(nn.Identity(), x))


# What is refused


class Options:
    pass


def keep(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    self.last = x * 2
    self.seen.append(x)
    self.options.last = 3
    return x * 2


def test_what_forward_keeps_on_the_module_is_refused_and_the_module_is_untouched() -> None:
    module = Function(keep, calls=0, seen=[], options=Options())
    before = set(vars(module))
    with pytest.raises(CaptureError, match=r"Function.forward changes calls, last, options.last, seen on the module"):
        strict(module, leaf(2))
    assert (module.calls, module.seen, vars(module.options), set(vars(module))) == (0, [], {}, before)


def count_globally(_: Any, x: Tensor) -> Tensor:
    COUNTS["calls"] += 1
    SEEN.append(1)
    return x * 2


def test_what_forward_keeps_in_globals_is_refused_and_untouched() -> None:
    with pytest.raises(
        CaptureError,
        match=r"Function.forward changes global COUNTS of .*test_dynamo, global SEEN of .*test_dynamo: a graph",
    ):
        strict(Function(count_globally), leaf(2))
    assert (COUNTS, SEEN) == ({"calls": 0}, [])


def test_what_forward_keeps_in_a_closure_is_refused() -> None:
    calls = 0

    def forward(_: Any, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * 2

    with pytest.raises(CaptureError, match=r"Function.forward changes .*calls"):
        strict(Function(forward), leaf(2))
    assert calls == 0


def test_what_forward_changes_in_an_argument_is_refused_and_untouched() -> None:
    options = Options()
    with pytest.raises(CaptureError, match="Function.forward changes argument rest"):
        strict(Function(lambda _, x, o: setattr(o, "calls", 1) or x * 2), leaf(2), options)
    assert vars(options) == {}


def test_setting_an_attribute_to_what_it_was_is_fine() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.n += 1  # a buffer
        self.size = x.shape[0]
        return self.linear(x)

    module = buffered(forward, n=torch.zeros(3))
    setattr(module, "size", 2)  # noqa: B010 (an attribute that modules do not declare)
    check_against_eager(module, (x := leaf(2, 3),), graphs=strict(module, x))


def prints(_: Any, x: Tensor) -> Tensor:
    print("seen")
    return x * 2


def branches(_: Any, x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def loops(_: Any, x: Tensor) -> Tensor:
    for row in x.nonzero():
        x = x + row.sum()
    return x


def fails(_: Any, x: Tensor) -> Tensor:
    raise ValueError("out of luck")


def seeds(_: Any, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x * torch.rand(2)


def mismatched(_: Any, x: Tensor) -> Tensor:
    return x @ torch.ones(3, 3)


def misses(_: Any, x: Tensor) -> Tensor:
    return missing(x)  # type: ignore[name-defined]  # noqa: F821


@torch.compiler.disable
def apart(x: Tensor) -> Tensor:
    return x * 2


def leaves(_: Any, x: Tensor) -> Tensor:
    return apart(x)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (prints, "it calls print, which no graph can replay"),
        (branches, "it decides something by a value that only the data tells"),
        (loops, "it loops over something, .*of a length that only the data tells; loop over range"),
        (fails, r"it raises ValueError\('out of luck'\)"),
        (seeds, "it calls manual_seed, which no graph can replay"),
        (mismatched, "a and b must have same reduction dim"),
        (misses, "the name missing is not defined"),
        (leaves, "it calls a function under torch.compiler.disable"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_forward_that_is_not_one_graph_is_refused_with_the_line(forward: Any, reason: str) -> None:
    with pytest.raises(
        CaptureError,
        match=rf"cannot trace Function strictly: {reason}.*\n  at .*test_dynamo.py:\d+, in {forward.__name__}: ",
    ):
        strict(Function(forward), leaf(2, 2))


def test_what_tracing_finds_later_names_the_line_too() -> None:
    count = torch.zeros(3)

    def writes(_: Any, x: Tensor) -> Tensor:
        return x * count.add_(1)

    with pytest.raises(
        CaptureError, match=r"it changes a tensor .*make it a buffer\n  at .*test_dynamo.py:\d+, in writes"
    ):
        strict(Function(writes), leaf(3))
    assert torch.equal(count, torch.zeros(3))


@pytest.mark.parametrize("generator", ["random", "numpy.random"])
def test_draws_that_a_graph_would_freeze_are_refused(generator: str) -> None:
    module = pytest.importorskip(generator)
    with pytest.raises(CaptureError):
        strict(Function(lambda _, x: x * module.random()), leaf(2))


def test_errors_of_annopipe_say_what_they_say_elsewhere() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        with ap.region("a b"):
            return x * 2

    with pytest.raises((CaptureError, GraphError), match="a b"):
        strict(Function(forward), leaf(2))


def test_a_warning_of_forward_is_not_lost_and_settings_are_put_back() -> None:
    before = {name: getattr(torch._dynamo.config, name) for name in ("specialize_float", "side_effect_replay_policy")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strict(nn.Linear(2, 2), leaf(2, 2))
    assert before == {name: getattr(torch._dynamo.config, name) for name in before}
