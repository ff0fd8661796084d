"""Forms: equal stretches have equal ones, whatever their symbols are called; and what has none."""

import json
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import annopipe as ap
from annopipe.compiling.forms import strides_of
from annopipe.graphs.stage_graph import body
from tests.compiling.interpreting import interpreting
from tests.compiling.small_moe import SmallMoE
from tests.graphs.helpers import same

WIDTH = 8


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Layers(nn.Module):
    """Four layers that are alike, each with a size of its own that depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in range(4):
            rows = x[:, 0].gt(0).nonzero().squeeze(1)
            with ap.region(f"layer{layer}"):
                x = (x.index_select(0, rows).sigmoid() * 3 - 1).tanh()
        return x


def test_layers_that_are_alike_have_one_form() -> None:
    graph = ap.trace(Layers(), (torch.ones(9, WIDTH),)).forward
    _, bounds = interpreting(graph)
    forms = {bound.stretch.region: bound.form for bound in bounds if bound.stretch.region.startswith("layer")}
    assert forms["layer1"] == forms["layer2"]  # though their sizes are other symbols
    assert [value.get("shape") for value in json.loads(forms["layer1"])["inputs"][:2]] == [["s0", WIDTH], ["s1", 1]]
    assert [value.get("shape") for value in json.loads(forms["layer0"])["inputs"][:2]] == [[9, WIDTH], ["s0", 1]]


def test_every_symbol_of_an_input_is_an_input() -> None:
    graph = ap.trace(SmallMoE(WIDTH, dist.group.WORLD, 1, 0), (torch.randn(6, WIDTH, requires_grad=True),)).backward
    _, bounds = interpreting(graph)
    seen = 0
    for bound in bounds:
        form = json.loads(bound.form)
        symbols = {f"s{number}" for number in range(len(form["ranges"]))}
        assert symbols <= {value.get("number") for value in form["inputs"]}
        seen += len(symbols)
    assert seen > 0


def test_stretches_give_what_the_graph_gives_for_sizes_that_depend_on_data() -> None:
    graph = ap.trace(Layers(), (torch.ones(9, WIDTH),)).forward
    found, bounds = interpreting(graph)
    assert len(bounds) > 1
    for count in (9, 0, 1, 5):
        x = torch.randn(9, WIDTH)
        x[:, 0] = torch.where(torch.arange(9) < count, 1.0, -1.0)
        assert same(found({"input.x": x})["output"], graph({"input.x": x})["output"])


def test_inputs_of_other_strides_are_laid_out_as_traced() -> None:
    graph = ap.trace(nn.Sequential(nn.SiLU(), nn.Tanh()), (torch.ones(4, WIDTH),)).forward
    found, bounds = interpreting(graph)
    assert [len(bound.stretch.nodes) for bound in bounds] == [2]
    assert any(getattr(node.target, "__name__", "") == "pack_checked" for node in body(found.graph))
    x = torch.randn(WIDTH, 4).t()
    assert same(found({"input.input": x})["output"], graph({"input.input": x})["output"])


def test_parameters_that_were_replaced_are_laid_out_as_traced() -> None:
    module = Scaled()
    graphs = ap.trace(module, (torch.ones(4, WIDTH),))
    found, bounds = interpreting(graphs.forward)
    assert len(bounds) == 1
    assert any(getattr(node.target, "__name__", "") == "pack_checked" for node in body(found.graph))
    module.load_state_dict({"scale": torch.randn(WIDTH, 4).t()}, assign=True)
    values = {**graphs.bind(module), **graphs.bind_inputs(torch.ones(4, WIDTH))}
    given = [values[port.name] for port in found.inputs]
    (pack,) = (node.target for node in body(found.graph) if getattr(node.target, "__name__", "") == "pack_checked")
    assert all(value.is_contiguous() for value in pack(*given))  # type: ignore[operator]
    assert same(found(values)["output"], graphs.forward(values)["output"])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).tanh()


class Lookups(nn.Module):
    """Looks up what it is given, in several ways, and what it has computed itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, WIDTH))

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = nn.functional.embedding(tokens[:, 1:], self.table) * 2
        x = x + self.table[tokens.long()[:, 1:]] + self.table.index_select(0, labels).sum(0)
        best = x.tanh().argmax(-1)
        own = self.table.tanh()[best.flatten() % 8] + 1
        return x.tanh() + 1, nn.functional.cross_entropy(x.flatten(0, 1)[:3], labels), own


def test_places_that_a_caller_gives_are_looked_up_eagerly() -> None:
    module, given = Lookups(), (torch.tensor([[0, 1, 2], [9, 8, 7]], dtype=torch.int32), torch.tensor([0, 7, 2]))
    graphs = ap.trace(module, given)
    found, bounds = interpreting(graphs.forward)
    inside = {str(node.target) for bound in bounds for node in bound.stretch.nodes}
    assert not any(name in text for name in ("embedding", "index_select", "nll_loss") for text in inside)
    assert "aten.index.Tensor" in inside  # of what the graph computes
    values = {**graphs.bind(module), **graphs.bind_inputs(*given)}
    assert all(same(found(values)[name], value) for name, value in graphs.forward(values).items())
    for wrong in ((given[0] + 5, given[1]), (given[0], given[1] + 5)):
        with pytest.raises(IndexError, match="out of"):
            found({**graphs.bind(module), **graphs.bind_inputs(*wrong)})


def test_what_lies_in_memory_with_the_other_sign_is_written_out() -> None:
    graph = ap.trace(nn.Sequential(nn.SiLU(), nn.Tanh()), (torch.ones(4, WIDTH),)).forward
    found, _ = interpreting(graph)
    (pack,) = (node.target for node in body(found.graph) if getattr(node.target, "__name__", "") == "pack_checked")
    x = torch.randn(4, WIDTH, dtype=torch.complex64).conj().imag
    (given,) = pack(x)  # type: ignore[operator]
    assert x.is_neg()
    assert not given.is_neg()
    assert same(given, x)


def test_an_expanded_input_is_described_as_one_piece() -> None:
    assert strides_of(torch.ones(3, 1, 5).expand(3, 4, 5)) == (20, 5, 1)
    assert strides_of(torch.ones(()).expand(2)) == (1,)
    assert strides_of(torch.ones(4, 3).t()) == (1, 3)
