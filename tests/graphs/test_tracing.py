"""Graphs of all sorts of modules are equal to eager bit by bit: outputs, gradients, buffers and random state."""

import collections
import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import annopipe as ap
from annopipe.errors import CaptureError
from tests.graphs.helpers import assert_same, check_against_eager
from tests.graphs.modules import Function, buffered, leaf, plain

Case = Callable[[], tuple[nn.Module, tuple[Any, ...]]]


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, **options)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


class TiedInTurns(nn.Module):
    """One weight under three names and one layer under four, used in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.layers = nn.ModuleList([self.a] * 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.a, *self.layers, self.b):
            x = layer(x).tanh()
        return x @ self.b.weight


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3 * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradients[0] * ctx.factor, None


def without_gradient_inside(_: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        mean = x.mean()
        with torch.enable_grad():
            tripled = x * 3
    return (x - mean) * tripled.detach() + tripled


def mutates_intermediates(_: Any, x: Tensor) -> Tensor:
    y = x * 2
    y[0].mul_(3)
    y.add_(1)
    z = torch.zeros_like(y)
    z[:, 1] = y[:, 2]
    z.view(-1)[0:2] += 1
    return z * y


def router(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    probabilities = self.gate(x).softmax(-1)
    weights, chosen = probabilities.topk(2)
    load = F.one_hot(chosen, 4).sum(1).float()
    balance = (load.mean(0) * probabilities.mean(0)).sum()
    return (x.unsqueeze(1) * weights.unsqueeze(2)).sum(1), balance


def draws(_: Any, x: Tensor) -> Tensor:
    torch.rand(3)  # not used, but it moves the generator
    noise = torch.empty(4, 3).t().bernoulli_(0.5) + torch.empty(3, 4).normal_() + torch.randn_like(x)
    return x[torch.randperm(3)] * noise + F.gumbel_softmax(x, hard=True)


def gradient_inside(_: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return slope * 2


def hooked(_: Any, x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 5)
    return y.sin()


def autocast_inside(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = self.linear(x)
    return y.float() @ y.float().t()


def frozen_first() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[0].requires_grad_(False)
    return module


def with_hooks() -> nn.Module:
    module = nn.Linear(3, 3)
    module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    module.register_forward_hook(lambda _, args, output: output * 2)
    return module


MASK = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
MODULES: dict[str, Case] = {
    "linear": lambda: (nn.Linear(3, 2), (leaf(4, 3),)),
    "linear, input without gradient": lambda: (nn.Linear(3, 2), (plain(4, 3),)),
    "linear of no rows": lambda: (nn.Linear(3, 2), (leaf(0, 3),)),
    "float64": lambda: (nn.Linear(3, 2).double(), (leaf(4, 3, dtype=torch.float64),)),
    "bfloat16": lambda: (
        nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)).bfloat16(),
        (leaf(4, 3, dtype=torch.bfloat16),),
    ),
    "encoder layer": lambda: (encoder_layer(), (leaf(2, 5, 16),)),
    "encoder layer, evaluating": lambda: (encoder_layer().eval(), (leaf(2, 5, 16),)),
    "encoder layer, masked": lambda: (
        Function(lambda s, x: s.layer(x, src_key_padding_mask=MASK), layer=encoder_layer()),
        (leaf(2, 5, 16),),
    ),
    "gru": lambda: (nn.GRU(4, 5, 2, dropout=0.3), (leaf(2, 2, 4),)),
    "rnn": lambda: (nn.RNN(4, 5, bidirectional=True), (leaf(2, 2, 4),)),
    "embedding = head": lambda: (Tied(), (torch.randint(0, 11, (2, 3)),)),
    "weights tied in turns": lambda: (TiedInTurns(), (leaf(5, 4),)),
    "embedding with padding": lambda: (nn.Embedding(11, 4, padding_idx=0), (torch.tensor([[0, 1, 2]]),)),
    "batch norm": lambda: (nn.BatchNorm1d(3), (leaf(5, 3),)),
    "batch norm twice": lambda: (Function(lambda s, x: s.norm(s.norm(x)), norm=nn.BatchNorm1d(3)), (leaf(5, 3),)),
    "batch norm, evaluating": lambda: (nn.BatchNorm1d(3).eval(), (leaf(5, 3),)),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        (leaf(2, 2, 8, 8),),
    ),
    "channels last": lambda: (
        nn.Conv2d(2, 3, 3),
        (torch.randn(2, 2, 5, 5).to(memory_format=torch.channels_last).requires_grad_(),),
    ),
    "group norm": lambda: (nn.GroupNorm(2, 4), (leaf(2, 4, 3),)),
    "complex": lambda: (
        Function(lambda s, x: torch.fft.ifft(torch.fft.fft(x) * s.w), w=nn.Parameter(torch.randn(4).to(torch.cfloat))),
        (leaf(3, 4),),
    ),
    "dropout": lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.AlphaDropout(0.2)), (leaf(3, 4),)),
    "random numbers": lambda: (Function(draws), (leaf(3, 4),)),
    "flash attention": lambda: (
        Function(lambda _, x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
        (leaf(2, 2, 4, 4),),
    ),
    "attention with dropout": lambda: (
        Function(lambda _, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)),
        (leaf(2, 2, 4, 4),),
    ),
    "parts without gradient": lambda: (Function(without_gradient_inside), (leaf(3, 4),)),
    "mutated intermediates": lambda: (Function(mutates_intermediates), (leaf(3, 4),)),
    "autograd function": lambda: (Function(lambda _, x: Cube.apply(x * 2, 3)), (leaf(3, 4),)),
    "gradient inside": lambda: (Function(gradient_inside), (leaf(3),)),
    "tensor hook": lambda: (Function(hooked), (leaf(3),)),
    "module hooks": lambda: (with_hooks(), (leaf(2, 3),)),
    "autocast inside": lambda: (Function(autocast_inside, linear=nn.Linear(3, 3)), (leaf(4, 3),)),
    "parametrization": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), (leaf(2, 3),)),
    "spectral norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), (leaf(2, 3),)),
    "frozen layer": lambda: (frozen_first(), (plain(2, 3),)),
    "frozen layer, input with gradient": lambda: (frozen_first(), (leaf(2, 3),)),
    "all frozen": lambda: (nn.Linear(3, 3).requires_grad_(False), (plain(2, 3),)),
    "all frozen, input with gradient": lambda: (nn.Linear(3, 3).requires_grad_(False), (leaf(2, 3),)),
    "LoRA": lambda: (LoRA(), (leaf(2, 4),)),
    "unused parameter": lambda: (
        Function(lambda s, x: s.used(x), used=nn.Linear(3, 3), unused=nn.Linear(3, 3)),
        (leaf(2, 3),),
    ),
    "views of a parameter": lambda: (
        Function(
            lambda s, x: x @ s.w.t() @ s.w.view(3, 3) + s.w.chunk(3)[1].sum() + s.w.unbind(0)[2],
            w=nn.Parameter(torch.randn(3, 3)),
        ),
        (leaf(2, 3),),
    ),
    "loop over experts": lambda: (
        Function(lambda s, x: sum(torch.relu(x @ s.w[i]) for i in range(3)), w=nn.Parameter(torch.randn(3, 4, 4))),
        (leaf(2, 4),),
    ),
    "router": lambda: (Function(router, gate=nn.Linear(3, 4)), (leaf(5, 3),)),
    "constant tensors": lambda: (
        Function(lambda s, x: x * s.c + torch.tensor([1.0, 2.0, 3.0]), c=plain(3)),
        (leaf(2, 3),),
    ),
    "matrix inverse": lambda: (Function(lambda _, x: torch.linalg.inv(x)), (leaf(3, 3),)),
    "interpolation": lambda: (
        Function(lambda _, x: F.interpolate(x, scale_factor=2, mode="bilinear")),
        (leaf(1, 2, 4, 4),),
    ),
    "vmap": lambda: (
        Function(lambda s, x: torch.vmap(lambda row: row * s.w)(x), w=nn.Parameter(torch.randn(3))),
        (leaf(2, 3),),
    ),
    "cond": lambda: (
        Function(lambda _, x: torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,))),
        (leaf(3),),
    ),
    "item": lambda: (Function(lambda _, x: x * x.detach().sum().item()), (leaf(3),)),
    "strided view": lambda: (Function(lambda _, x: (x * 2).as_strided((2, 3), (1, 4)) * 3), (leaf(3, 4),)),
    "no argument": lambda: (NoArgument(), ()),
}


class NoArgument(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self) -> Tensor:
        return self.w * 2


@pytest.mark.parametrize("name", MODULES)
def test_graphs_are_equal_to_eager(name: str) -> None:
    module, args = MODULES[name]()
    check_against_eager(module, args)


def test_keyword_arguments_defaults_constants_and_any_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Everything(nn.Module):
        def forward(self, x: Tensor, *rest: Tensor, scale: float = 2.0, mask: Any = None, **more: Any) -> Any:
            y = x * scale
            for one in rest:
                y = y + one
            y = y.masked_fill(mask, 0)
            for name in sorted(more):
                y = y * more[name]
            return {"y": y, "none": None, 3: "text", "list": [y.sum(), (1.5, True)]}

    args = (leaf(2, 3), leaf(2, 3), torch.ones(2, 3))
    check_against_eager(Everything(), args, {"mask": torch.ones(2, 3).bool(), "u": leaf(2, 3), "v": 3})


def and_views(_: Any, x: Tensor) -> Any:
    y = x.sin()
    return y, y.view(-1), y[0]


def and_its_sigmoid(_: Any, x: Tensor) -> Any:
    y = x.exp()
    return y, y.sigmoid()


OUTPUTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "view of the input": lambda _, x: x.view(12),
    "the input": lambda _, x: x,
    "the input and more": lambda _, x: (x, x * 2, x.t()),
    "one tensor twice": lambda _, x: [x * 2] * 2,
    "a tensor and views of it": and_views,
    "an output that is saved": and_its_sigmoid,
    "expanded": lambda _, x: (x[:, :1].expand(3, 4), x[:, None]),
    "some without gradient": lambda _, x: (x * 2, (x * 3).detach(), x.argmax(), x > 0),
    "zero gradient": lambda _, x: x.round() + x.sign(),
    "named tuples of PyTorch": lambda _, x: (x.max(1), x.sort(1)),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_every_kind(name: str) -> None:
    check_against_eager(Function(OUTPUTS[name]), (leaf(3, 4),))


def test_outputs_that_are_parameters_and_buffers() -> None:
    module = buffered(lambda s, x: (s.linear(x), s.linear.weight, s.linear.weight.view(-1), s.b), b=torch.ones(2))
    check_against_eager(module, (leaf(2, 3),))


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024 - the untyped form is what users have


def test_named_tuples_and_dictionaries_as_arguments() -> None:
    check_against_eager(Function(lambda _, p: Pair(p.a * p.b, p.a.sum())), (Pair(leaf(2, 2), leaf(2, 2)),))
    check_against_eager(Function(lambda _, d: d["a"] * d[5]), ({"a": leaf(3), 5: leaf(3)},))


def test_inputs_that_are_not_contiguous_zero_dimensional_or_integers() -> None:
    check_against_eager(Function(lambda _, x: x.transpose(0, 1) * 2), (plain(4, 3).t().requires_grad_(),))
    check_against_eager(Function(lambda _, x: x * 2), (torch.tensor(3.0).requires_grad_(),))
    check_against_eager(Function(lambda _, x, y: x * y), (leaf(3), torch.tensor([1, 2, 3])))


def test_a_call_may_have_other_strides_than_the_example() -> None:
    graphs = ap.trace(Function(lambda _, x: x.view(-1) * 2), (leaf(4, 3),))
    x = plain(3, 4).t()
    assert torch.equal(graphs.forward(graphs.bind_inputs(x))["output"], x.reshape(-1) * 2)


def test_tangents_may_be_expanded() -> None:
    module, x = Function(lambda s, x: (x.t() @ s.w).t(), w=nn.Parameter(torch.randn(3, 4))), leaf(3, 5)
    graphs = ap.trace(module, (x,))
    tangent = torch.ones(()).expand(4, 5)
    expected = torch.autograd.grad(module(x), [module.w, x], tangent)
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    values |= {**graphs.forward(values), "tangent.output": tangent}
    assert graphs.backward is not None
    found = graphs.backward(values)
    assert_same([found["param_grad.w"], found["input_grad.x"]], list(expected))


# Sizes that depend on data: one trace, any sizes


def experts_by_list(self: Any, x: Tensor, counts: Tensor) -> Tensor:
    parts = x.split(counts.tolist())
    return torch.cat([F.dropout(torch.tanh(p @ self.w[i]), 0.3) for i, p in enumerate(parts)])


@pytest.mark.parametrize("forward", [experts_by_list, lambda _, x, c: x.split(c.tolist())[1] * 2], ids=["all", "one"])
def test_one_trace_serves_splits_of_0_1_and_many(forward: Any) -> None:
    module = Function(forward, w=nn.Parameter(torch.randn(3, 4, 4)))
    graphs = ap.trace(module, (leaf(6, 4), torch.tensor([1, 2, 3])))
    for counts in ([1, 2, 3], [0, 0, 6], [6, 0, 0], [0, 1, 5], [1, 1, 4], [2, 2, 2]):
        check_against_eager(module, (leaf(6, 4), torch.tensor(counts)), graphs=graphs)


def by_nonzero(_: Any, x: Tensor) -> Tensor:
    rows = (x > 0).nonzero().squeeze(1)
    return torch.zeros_like(x).index_add(0, rows, x[rows] * 2)


@pytest.mark.parametrize("forward", [lambda _, x: x[x > 0] * 2, by_nonzero], ids=["mask", "nonzero"])
def test_one_trace_serves_any_number_of_selected_rows(forward: Any) -> None:
    graphs = ap.trace(Function(forward), (leaf(6),))
    for signs in ([1] * 6, [-1] * 6, [1, -1, -1, -1, -1, -1], [1, 1, -1, -1, -1, 1]):
        x = torch.tensor(signs, dtype=torch.float32).requires_grad_()
        check_against_eager(Function(forward), (x,), graphs=graphs)


def test_one_trace_serves_any_size_read_from_a_tensor() -> None:
    def cut(_: Any, x: Tensor, count: Tensor) -> Tensor:
        rows: Any = count.item()
        torch._check(rows >= 0)
        torch._check(rows <= 4)
        return x.narrow(0, 0, rows) * 2

    graphs = ap.trace(Function(cut), (leaf(4, 3), torch.tensor(2)))
    for rows in (0, 1, 2, 4):
        check_against_eager(Function(cut), (leaf(4, 3), torch.tensor(rows)), graphs=graphs)


# Losses


@pytest.mark.parametrize("loss_fn", [F.cross_entropy, lambda o, t: F.nll_loss(o.log_softmax(1), t)], ids=["ce", "nll"])
def test_a_loss_is_equal_to_eager(loss_fn: Any) -> None:
    target = torch.tensor([0, 1, 2, 3, -100])
    check_against_eager(nn.Linear(3, 4), (leaf(5, 3),), loss_fn=loss_fn, target=target)


def test_a_target_may_be_a_tree_with_gradients_constants_and_none() -> None:
    def loss(output: Tensor, target: Any) -> Tensor:
        return F.cross_entropy(output, target["y"]) * target["k"] + (output * target["z"]).sum()

    target = {"y": torch.tensor([0, 1, 2, 3, 1]), "k": 2.0, "z": leaf(5, 4), "none": None}
    graphs = check_against_eager(nn.Linear(3, 4), (leaf(5, 3),), loss_fn=loss, target=target)
    assert [p.name for p in graphs.backward.inputs if p.role == "tangent"] == ["tangent.loss"]
    with pytest.raises(CaptureError, match=r"argument target.k was 2.0 .* and is 3.0 now"):
        graphs.bind_inputs(leaf(5, 3), target={**target, "k": 3.0})


def test_a_loss_with_buffer_updates_and_no_target() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    check_against_eager(module, (leaf(4, 3),), loss_fn=lambda output, _: output.sin().sum())


# Buffers


def update_before_and_after(self: Any, x: Tensor) -> Tensor:
    y = self.linear(x) * self.n.exp()
    self.n.add_(1)
    with torch.no_grad():
        self.n.mul_(2)
        self.n[0] = 5
    return y * self.n.cos()


def running_mean(self: Any, x: Tensor) -> Tensor:
    y = self.linear(x)
    self.n.lerp_(y.detach().mean(0), 0.1)
    return y * self.n


@pytest.mark.parametrize("forward", [update_before_and_after, running_mean])
def test_updates_of_buffers_are_written_by_hand_and_the_backward_sees_the_old_values(forward: Any) -> None:
    check_against_eager(buffered(forward, n=torch.zeros(3)), (leaf(3, 3),))


def test_one_buffer_under_two_names() -> None:
    def count(self: Any, x: Tensor) -> Tensor:
        self.n.add_(1)
        return self.linear(x) * self.m

    n = torch.zeros(3)
    check_against_eager(buffered(count, n=n, m=n), (leaf(3, 3),))


# Under which circumstances trace is called


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_trace_gives_gradients_whatever_the_mode_around_it(context: Any) -> None:
    module, x = nn.Linear(3, 2), leaf(4, 3)
    with context():
        graphs = ap.trace(module, (x,))
    check_against_eager(module, (x,), graphs=graphs)


def test_tensors_made_in_inference_mode_are_fine() -> None:
    module = nn.Linear(3, 2)
    with torch.inference_mode():
        x = torch.randn(4, 3)
        graphs = ap.trace(module, (x,))
        assert_same(graphs.forward({**graphs.bind(module), **graphs.bind_inputs(x)})["output"], module(x))


def test_autocast_around_the_trace_is_part_of_the_graph() -> None:
    module, x = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), leaf(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        graphs = check_against_eager(module, (x,))
    assert graphs.forward.port("saved.addmm").dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_module_without_memory_is_traced_like_one_with(device: str) -> None:
    real = encoder_layer()
    with torch.device(device), torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        module, x = encoder_layer(), torch.randn(2, 5, 16).requires_grad_()
    graphs = ap.trace(module, (x,))
    assert [p.name for p in graphs.forward.inputs] == [p.name for p in ap.trace(real, (leaf(2, 5, 16),)).forward.inputs]


def test_tracing_touches_nothing() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.LSTM(3, 3))
    module[3].register_forward_hook(lambda *_: None)
    alone = nn.ModuleList([module[0], module[0]])  # one module under several names
    module.append(nn.Identity())
    module[4].shared = alone
    before = {name: (id(t), t.detach().clone()) for name, t in (*module.named_parameters(), *module.named_buffers())}
    attributes = {name: set(vars(child)) for name, child in module.named_modules()}
    flat = list(module[3]._flat_weights)
    x, state = leaf(4, 3), torch.get_rng_state()
    ap.trace(Function(lambda s, x: s.inner[4](s.inner[2](s.inner[1](s.inner[0](x)))), inner=module), (x,))
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        assert (id(tensor), True) == (before[name][0], torch.equal(tensor, before[name][1]))
    assert attributes == {name: set(vars(child)) for name, child in module.named_modules()}
    assert all(a is b for a, b in zip(flat, module[3]._flat_weights, strict=True))


def test_a_mode_that_forward_switches_is_as_before() -> None:
    def evaluate(self: Any, x: Tensor) -> Tensor:
        self.dropout.eval()
        return self.dropout(x)

    module = Function(evaluate, dropout=nn.Dropout())
    ap.trace(module, (leaf(3),))
    assert module.dropout.training


def test_one_tensor_for_two_arguments_stays_two_inputs() -> None:
    x = leaf(3, 3)
    graphs = ap.trace(Function(lambda _, x, y: x * y), (x, x))
    a, b = plain(3, 3), plain(3, 3)
    out = graphs.forward(graphs.bind_inputs(a, b))
    assert graphs.backward is not None
    found = graphs.backward({**out, "tangent.output": torch.ones(3, 3)})
    assert_same([out["output"], found["input_grad.x"], found["input_grad.rest.0"]], [a * b, b, a])


def test_an_argument_that_is_also_a_parameter_has_two_gradients() -> None:
    module = Function(lambda s, x: x * s.w, w=nn.Parameter(torch.randn(3)))
    graphs = ap.trace(module, (module.w,))
    values = {**graphs.bind(module), **graphs.bind_inputs(module.w), "tangent.output": torch.ones(3)}
    assert graphs.backward is not None
    found = graphs.backward({**values, **graphs.forward(values)})
    assert_same([found["input_grad.x"], found["param_grad.w"]], [module.w.detach()] * 2)


def test_lstm_is_equal_to_eager_up_to_rounding() -> None:
    module, x = nn.LSTM(4, 5), leaf(3, 2, 4)
    graphs = ap.trace(module, (x,))
    out = graphs.forward({**graphs.bind(module), **graphs.bind_inputs(x)})
    torch.testing.assert_close(graphs.result(out), module(x))


# What is refused


def test_gradients_that_nothing_depends_on_are_refused() -> None:
    with pytest.raises(CaptureError, match="gradients are asked for .* of Linear requires grad.* no output depends"):
        ap.trace(nn.Linear(3, 4), (leaf(5, 3),), loss_fn=lambda *_: torch.tensor(3.0))


def test_a_target_without_a_loss_is_refused() -> None:
    with pytest.raises(CaptureError, match="target is only used by loss_fn: pass loss_fn too"):
        ap.trace(nn.Linear(3, 4), (leaf(5, 3),), target=torch.ones(1))


def test_a_forward_with_an_argument_called_target_is_refused_with_a_loss() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor, target: Any = None) -> Tensor:
            return x * 2

    check_against_eager(Named(), (leaf(3),))
    with pytest.raises(CaptureError, match="forward has a parameter named 'target'"):
        ap.trace(Named(), (leaf(3),), loss_fn=lambda o, _: o.sum())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: torch.jit.script(nn.Linear(3, 3)), "the module is a TorchScript module"),
        (
            lambda: nn.Sequential(cast("nn.Module", torch.compile(nn.Linear(3, 3)))),
            "0 is compiled already: pass the module",
        ),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "0 is a lazy module: call it once"),
    ],
    ids=["script", "compiled", "lazy"],
)
def test_modules_whose_forward_cannot_be_seen_are_refused(module: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        ap.trace(module(), (leaf(2, 3),))


def test_a_distributed_parameter_among_plain_tensors_is_refused_as_in_eager(group_of_one: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    module = nn.Linear(3, 3)
    mesh = init_device_mesh("cpu", (1,))
    module.weight = nn.Parameter(distribute_tensor(module.weight.data, mesh, [Replicate()]))
    with pytest.raises(CaptureError, match=r"got mixed torch.Tensor and DTensor(.|\n)* in forward: "):
        ap.trace(module, (leaf(2, 3),))


def test_module_and_graphs_are_independent() -> None:
    module = nn.Linear(3, 3)
    graphs = ap.trace(module, (leaf(2, 3),))
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.weight.mul_(2)
    check_against_eager(other, (leaf(2, 3),), graphs=graphs)
