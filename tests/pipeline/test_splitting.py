"""``ap.split``: the stages compute what the model computes, hold its own tensors, and refuse what cannot be cut."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import annopipe as ap


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("scale", torch.full((width,), 0.5), persistent=False)

    def forward(self, x, mask=None):
        with ap.region("mlp"):
            y = torch.tanh(self.linear(x)) * self.scale
            return x + (y if mask is None else y * mask)


class Decoder(nn.Module):
    """Embedding, positions, layers that all take the mask, a tied head, a dictionary as output; one unused module."""

    def __init__(self, layers=4, width=6, words=11):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(5, width))
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, ids, mask, bias=None):
        length = ids.shape[1]
        hidden = self.embed(ids) + self.positions[:length]
        if bias is not None:
            hidden = hidden + bias
        for index, layer in enumerate(self.layers):
            with ap.region(f"layer{index}"):
                hidden = layer(hidden, mask)
        return {"logits": self.head(self.norm(hidden)), "length": length}


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Decoder()
        self.out = nn.Linear(11, 1)

    def forward(self, ids, mask):
        return self.out(self.model(ids, mask)["logits"])


class AllOptional(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(11, 11)

    def forward(self, x=None):
        return self.linear(x)


def call_of(model):
    torch.manual_seed(3)
    return torch.randint(0, 11, (4, 5)), torch.rand(4, 5, 1)


def in_turn(stages, *args):
    for stage in stages[:-1]:
        args = stage(*args)
    return stages[-1](*args)


@pytest.fixture(autouse=True)
def double_precision():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("at", [[], ["layers.2"], ["layers.1", "layers.3"], ["layers.0", "norm", "head"]])
def test_the_stages_in_turn_compute_what_the_model_computes(at):
    model = Decoder()
    stages = ap.split(model, at=at)
    assert len(stages) == len(at) + 1
    found, expected = in_turn(stages, *call_of(model)), model(*call_of(model))
    assert torch.equal(found["logits"], expected["logits"])
    assert found["length"] == expected["length"]


@pytest.mark.parametrize("make", [Decoder, Wrapped])
def test_the_stages_hold_the_models_own_tensors_under_its_names_and_all_of_them(make):
    model = make()
    prefix = "model." if make is Wrapped else ""
    stages = ap.split(model, at=[f"{prefix}layers.1", f"{prefix}layers.3"])
    union = {name: tensor for stage in stages for name, tensor in stage.state_dict(keep_vars=True).items()}
    whole = model.state_dict(keep_vars=True)
    assert union.keys() == whole.keys()
    assert all(union[name] is whole[name] for name in whole)
    assert "unused.weight" in "".join(stages[0].state_dict())
    own = {name for stage in stages for name, _ in stage.named_buffers()}
    assert own == {name for name, _ in model.named_buffers()}


def test_nested_names_cut_inside_a_submodule():
    model = Wrapped()
    stages = ap.split(model, at=["model.layers.2", "out"])
    assert torch.equal(in_turn(stages, *call_of(model)), model(*call_of(model)))
    assert sorted(stages[2].state_dict()) == ["out.bias", "out.weight"]


def test_tied_weights_are_the_same_parameter_in_both_stages():
    model = Decoder()
    first, last = ap.split(model, at=["head"])
    assert first.embed.weight is last.head.weight is model.embed.weight


def test_a_sequential_inside_a_sequential_is_one_call_unless_a_cut_is_inside_it():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 1))
    x = torch.randn(2, 3)
    for at in (["1"], ["1.1"], ["1.1", "2"]):
        assert torch.equal(in_turn(ap.split(model, at=at), x), model(x))


def test_gradients_through_a_pipeline_equal_those_of_the_model():
    model, reference = Decoder(), Decoder()
    reference.load_state_dict(model.state_dict())
    stages = ap.split(model, at=["layers.1", "layers.2", "head"])
    schedule = ap.schedule("interleaved-1f1b", ranks=1, microbatches=2, chunks=4)

    def loss_fn(output, target):
        return (output["logits"] - target).square().mean()

    ids, mask = call_of(model)
    target = torch.randn(4, 5, 11)
    losses = ap.Pipeline(stages, schedule, loss_fn=loss_fn).step(ids, mask, target=target)
    expected = [
        loss_fn(reference(*parts[:2]), parts[2])
        for parts in zip(ids.chunk(2), mask.chunk(2), target.chunk(2), strict=True)
    ]
    sum(expected).backward()
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=0, atol=1e-14)
    for (name, own), (_, other) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        if other.grad is None:
            assert own.grad is None, name
        else:
            torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=1e-13)


def test_tags_of_the_forward_that_is_cut_stay_on_what_they_covered():
    stages = ap.split(Decoder(), at=["layers.2"])
    graphs = ap.trace(stages[0], call_of(None))
    regions = {row.region for row in ap.region_table(graphs.forward)}
    assert {"layer0/mlp", "layer1/mlp"} <= regions


def test_parameters_with_a_default_keep_it_unless_they_are_named():
    model = Decoder()
    ids, mask = call_of(model)
    bias = torch.randn(6)
    with pytest.raises(TypeError, match="bias"):
        ap.split(model, at=["layers.1"])[0](ids, mask, bias=bias)
    stages = ap.split(model, at=["layers.1"], inputs=["bias"])
    assert torch.equal(in_turn(stages, ids, mask, bias)["logits"], model(ids, mask, bias)["logits"])


def test_splitting_leaves_the_model_and_the_random_state_as_they_were():
    model = Decoder()
    before, state = dict(vars(model)), torch.get_rng_state()
    ap.split(model, at=["layers.1"])
    assert vars(model).keys() == before.keys()
    assert torch.equal(torch.get_rng_state(), state)


def test_modes_and_meta_tensors_are_kept():
    with torch.device("meta"):
        model = Decoder().eval()
    first, second = ap.split(model, at=["layers.1"])
    assert not first.training
    assert {parameter.device.type for parameter in second.parameters()} == {"meta"}


class Refused(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.count = kind, 0
        self.first, self.second, self.never = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        y = self.first(x)
        if self.kind == "branch" and y.sum() > 0:
            y = -y
        if self.kind == "random":
            y = y + torch.rand(2)
        if self.kind == "count":
            self.count += 1
        if self.kind == "checkpoint":
            return checkpoint(self.second, y, use_reentrant=False)
        if self.kind == "autocast":
            with torch.autocast("cpu"):
                return self.second(y)
        if self.kind == "twice":
            y = self.second(y)
        return self.second(y)


@pytest.mark.parametrize(
    ("kind", "at", "message"),
    [
        ("branch", ["second"], r"between the calls(.|\n)*if self.kind == \"branch\" and y.sum\(\) > 0"),
        ("random", ["second"], "draws random numbers"),
        ("count", ["second"], "changes count"),
        ("checkpoint", ["second"], "under torch.utils.checkpoint"),
        ("autocast", ["second"], "autocast, no_grad or the like"),
        ("twice", ["second"], "calls it 2 times"),
        ("", ["never"], "does not call it"),
        ("", ["second", "first"], "'first' is called before 'second'"),
        ("", ["first"], "nothing comes before it"),
        ("", ["second", "second"], "a name comes twice"),
        ("", ["secnd"], "no submodule 'secnd'; it has first, never, second"),
        ("", "second", "give a list of names"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(kind, at, message):
    with pytest.raises(ap.PipelineError, match=message):
        ap.split(Refused(kind), at=at)


def test_an_input_that_forward_does_not_have_is_refused():
    with pytest.raises(ap.PipelineError, match="has no parameter cache"):
        ap.split(Decoder(), at=["layers.1"], inputs=["cache"])
    with pytest.raises(ap.PipelineError, match=r"has a default: say which ones .* inputs=\['x'\]"):
        ap.split(AllOptional(), at=["linear"])
    with pytest.raises(ap.PipelineError, match="split takes a module"):
        ap.split([nn.Linear(1, 1)], at=["0"])


class Tagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, mask):
        with ap.region("first"):
            y = torch.cat([self.first(x), x]) * 2
        with ap.region("second"):
            return nn.functional.relu(self.second(y).mul(3)) * mask[:, None] + 1


@pytest.mark.parametrize("strict", [False, True])
def test_functions_and_operators_between_calls_keep_their_tags_also_under_strict_tracing(strict):
    model, x, mask = Tagged(), torch.randn(2, 4), torch.arange(4) > 1
    first, second = ap.split(model, at=["second"])
    given = first(x, mask)
    assert torch.equal(second(*given), model(x, mask))
    for stage, args, region in ((first, (x, mask), "first"), (second, given, "second")):
        graphs = ap.trace(stage, args, strict=strict)
        found = {row.region for row in ap.region_table(graphs.forward)}
        assert found == {region}
