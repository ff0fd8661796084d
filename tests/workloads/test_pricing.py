"""Layers that are priced one by one are the stages that are traced as a whole."""

import functools
import itertools
import math

import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.costs.stored import stored_bytes
from annopipe.graphs.capture import without_memory
from annopipe.graphs.process_groups import absent_group
from annopipe.models import DeepSeekV3Stage
from annopipe.tuning.layers import Layer, Pieces
from annopipe.tuning.pairing import Lane, lanes_seconds
from annopipe.workloads.model_layers import ModelLayers, identity
from annopipe.workloads.pieces import pieces_of
from annopipe.workloads.pricing import priced
from tests.workloads.examples import CONFIG, FAST, SPEC, machine

LENGTH, RANKS = 128, 4


@functools.cache
def stage(*blocks: int) -> ap.StageGraphs:
    with absent_group(RANKS) as group:
        with without_memory():
            module = DeepSeekV3Stage(CONFIG, blocks, group, seed=None, dtype=torch.bfloat16)
            x = torch.empty(1, LENGTH, CONFIG.hidden, dtype=torch.bfloat16, requires_grad=True)
        return ap.trace(module, (x,))


@pytest.mark.parametrize("link", [1e9, 2.5e9, 5e9, 2e10])
def test_layers_together_take_what_the_planned_graphs_of_stages_take(link: float) -> None:
    """Of dense layers with ones that have experts, of one with two, at links from slow to fast."""
    hardware = machine(link)
    price = functools.cache(lambda graph: ap.costs.roofline(graph, hardware))
    experts, dense = (Layer.of_pieces(pieces_of(stage(block), price)) for block in (1, 0))
    of_stage = [(dense,), (experts,), (experts, experts)]
    costs = ap.costs.actions({0: stage(0), 1: stage(1), 2: stage(1, 2)}, price)
    for one, layers in enumerate(of_stage):
        for kind, seconds in (("F", costs.F), ("I", costs.I), ("W", costs.W)):
            own = sum(getattr(layer, kind) + (layer.comm if kind != "W" else 0.0) for layer in layers)
            assert isinstance(seconds, list)
            assert own == pytest.approx(seconds[one], rel=0.02)
    for forward, backward in itertools.product(range(3), repeat=2):
        assert callable(costs.FB)
        ours = lanes_seconds((Lane("F", of_stage[forward]), Lane("B", of_stage[backward])))
        assert ours == pytest.approx(costs.FB(forward, backward), rel=0.08), (forward, backward)


def test_layers_keep_what_their_stage_keeps() -> None:
    with absent_group(RANKS) as group:
        with without_memory():
            layers = SPEC.build(group, 1, LENGTH).layers[2:4]
            x = torch.empty(1, LENGTH, CONFIG.hidden, dtype=torch.bfloat16, requires_grad=True)
        found = priced(ModelLayers(layers, (x,)), machine(), recompute=None).layers
    whole = stored_bytes(stage(1, 2))
    assert sum(layer.activation for layer in found) == whole.activation
    assert sum(layer.kept_for_weight for layer in found) == pytest.approx(whole.kept_for_weight, rel=0.01)
    held = sum(layer.shared.size_bytes + layer.experts.size_bytes for layer in found)
    assert 2 * held == pytest.approx(whole.parameters, rel=0.01)  # with gradients; a few buffers beside
    assert found[1].output_bytes == whole.output


def test_layers_of_a_rank_with_more_than_its_share_keep_more() -> None:
    with absent_group(RANKS) as group:
        with without_memory():
            layers = SPEC.build(group, 1, LENGTH).layers[2:3]
            x = torch.empty(1, LENGTH, CONFIG.hidden, dtype=torch.bfloat16, requires_grad=True)
        (layer,) = priced(ModelLayers(layers, (x,)), machine(), options={"skew": 1.5}).layers
        (even,) = priced(ModelLayers(layers, (x,)), machine()).layers
    whole = stored_bytes(stage(1), skew=1.5)
    assert layer.activation == whole.activation > stored_bytes(stage(1)).activation
    assert layer.kept_for_weight == pytest.approx(whole.kept_for_weight, rel=0.01)
    assert layer.recompute is not None
    assert even.recompute is not None
    assert layer.recompute.saves > even.recompute.saves


def test_pieces_of_experts_wait_for_their_messages() -> None:
    pieces = pieces_of(stage(1), lambda graph: ap.costs.roofline(graph, machine()))
    counts, dispatch, combine, last = pieces.forward
    assert counts.comm < dispatch.comm == combine.comm
    assert last.comm == 0.0
    assert sum(piece.beside for piece in pieces.forward) > 0.0  # shared experts
    assert [piece.comm > 0 for piece in pieces.backward] == [True, True, False]
    assert all(piece.weight >= 0.0 for piece in pieces.backward)
    assert pieces.times[2] > 0.0


def test_equal_layers_are_traced_once_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def trace(module: nn.Module, *args: object, **more: object) -> ap.StageGraphs:
        traced.append(module)
        return ap.trace(module, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("annopipe.workloads.pricing.trace", trace)
    layers = [nn.Linear(8, 8), nn.Linear(8, 8), nn.GELU(), nn.GELU("tanh"), nn.Linear(8, 8, bias=False)]
    found = priced(ModelLayers(layers, (torch.ones(2, 8),)), FAST, recompute=None).layers
    # The second takes an input that requires grad.
    assert traced == [layers[0], layers[1], layers[2], layers[3], layers[4]]
    assert found[1].shared.elements == 72
    assert found[1].pieces != found[0].pieces
    traced.clear()
    first = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    priced(
        ModelLayers([nn.Flatten(), *[first] * 3, nn.Sequential(nn.Linear(8, 8), nn.GELU())], (torch.ones(2, 8),)), FAST
    )
    assert len(traced) == 3  # two kinds of layer, one of them with what it can compute again, too


def test_what_differs_in_an_attribute_is_not_the_same() -> None:
    one, other = nn.Dropout(0.1), nn.Dropout(0.2)
    assert identity(one) != identity(other)
    assert identity(one) == identity(nn.Dropout(0.1))
    assert identity(nn.Dropout(0.1).eval()) != identity(one)


class _Repeated(nn.Module):
    def __init__(self, times: object) -> None:
        super().__init__()
        self._times = times
        self.layer = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        times = self._times[0][0] if isinstance(self._times, tuple) else self._times
        for _ in range(times):
            x = self.layer(x)
        return x


@pytest.mark.parametrize("wrapped", [False, True], ids=["hashable", "a list in a tuple"])
def test_layers_that_differ_in_a_private_attribute_are_priced_apart(*, wrapped: bool) -> None:
    layers = [_Repeated(([times],) if wrapped else times) for times in (1, 9)]
    one, other = priced(ModelLayers(layers, (torch.ones(64, 256),)), FAST, recompute=None).layers
    assert other.pieces.times[0] > 5 * one.pieces.times[0]


class _Gives(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.layer = form, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> object:
        out, other = self.layer(x), x * 2
        return {"dict": {"x": out, "more": other}, "nested": (out, [other]), "nothing": (out, None, 3)}[self.form]


class _Takes(nn.Module):
    def forward(self, x: object, more: object = None, count: int = 1) -> torch.Tensor:
        if isinstance(x, dict):
            x, more = x["x"], x["more"]
        assert isinstance(x, torch.Tensor)
        if isinstance(more, list):
            [more] = more
        return x * count + (more if isinstance(more, torch.Tensor) else 0)


@pytest.mark.parametrize(("form", "tensors"), [("dict", 2), ("nested", 2), ("nothing", 1)])
def test_what_a_layer_returns_is_handed_on_as_it_is(form: str, tensors: int) -> None:
    first, last = priced(ModelLayers([_Gives(form), _Takes()], (torch.ones(4, 8),)), FAST, recompute=None).layers
    assert (first.output_bytes, last.output_bytes) == (tensors * 128.0, 128.0)


def test_an_auxiliary_loss_is_not_what_the_next_layer_gets() -> None:
    class Balanced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            ap.auxiliary_loss(x.square().mean())
            return x

    first, _ = priced(ModelLayers([Balanced(), nn.Linear(8, 8)], (torch.ones(4, 8),)), FAST, recompute=None).layers
    assert first.output_bytes == 128.0


def test_a_layer_that_computes_again_keeps_less_and_takes_longer() -> None:
    model = ModelLayers([nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))] * 2, (torch.ones(2, 8),))
    layer = priced(model, FAST).layers[1]
    assert layer.recompute is not None
    assert 0.0 < layer.recompute.saves <= layer.activation
    assert layer.recompute.costs > 0.0
    again = Layer.of_pieces(layer.pieces, activation=layer.activation, recompute=layer.recompute).recomputed()
    assert again.pieces is not None
    assert math.fsum(again.pieces.times) == pytest.approx(again.work)
    assert priced(model, FAST, recompute=None).layers[1].recompute is None


def test_towers_hand_on_to_the_first_layer() -> None:
    class Joined(nn.Module):
        def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return (one * other).sum()

    towers = ([nn.Linear(4, 8)], [nn.Linear(2, 6), nn.Linear(6, 8)])
    model = ModelLayers([Joined()], towers=towers, tower_inputs=((torch.ones(3, 4),), (torch.ones(3, 2),)), sequences=3)
    found = priced(model, FAST)
    assert [len(tower) for tower in found.towers] == [1, 2]
    assert found.all_layers[-1].output_bytes == 4.0


def test_a_loss_belongs_to_the_last_layer_and_only_the_loss_is_handed_on() -> None:
    model = ModelLayers([nn.Linear(4, 4)] * 2, (torch.ones(3, 4),), nn.functional.mse_loss, torch.zeros(3, 4))
    first, last = priced(model, FAST).layers
    assert (first.output_bytes, last.output_bytes) == (48.0, 4.0)


class _Chosen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (ModelLayers([_Chosen()], (torch.ones(3),)), {}, r"_Chosen returns a tensor of shape .* depends on data"),
        (ModelLayers([nn.Linear(2, 2)], (torch.ones(1, 2),)), {"recompute": "mlp"}, "no layer runs in a region 'mlp'"),
        (
            ModelLayers([nn.Linear(2, 2)], (torch.ones(1, 2),)),
            {"options": {"hardware": 1}},
            "'hardware': give other arguments of ap.costs.roofline",
        ),
        (ModelLayers([nn.Linear(2, 2)], (torch.ones(1, 2),)), {"options": {"foo": 1}}, "'foo': give other arguments"),
    ],
)
def test_what_cannot_be_priced_is_refused(model: ModelLayers, more: dict[str, object], message: str) -> None:
    with pytest.raises(ap.CostError, match=message):
        priced(model, FAST, **more)  # type: ignore[arg-type]


def test_examples_that_do_not_fit_are_refused() -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    with pytest.raises(ap.CostError, match="has no inputs: give example arguments"):
        ModelLayers([layer])
    with pytest.raises(ap.CostError, match="both inputs and towers"):
        ModelLayers([layer], (x,), towers=([layer], [layer]), tower_inputs=((x,), (x,)))
    with pytest.raises(ap.CostError, match="2 towers and examples for 1"):
        ModelLayers([layer], towers=([layer], [layer]), tower_inputs=((x,),))
    with pytest.raises(ap.CostError, match="every chain one layer or more"):
        ModelLayers([], (x,))
    with pytest.raises(ap.CostError, match="'relu' is no layer"):
        ModelLayers(["relu"], (x,))  # type: ignore[list-item]
    with pytest.raises(ap.CostError, match="sequences=0"):
        ModelLayers([layer], (x,), sequences=0)


def test_pieces_are_equal_when_their_times_are() -> None:
    one, other = (Pieces((), ()) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
