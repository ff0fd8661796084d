"""The plain perceptron: against torch's own layers, cut into stages, and through the graphs."""

import torch
from torch import nn

from annopipe.models import MLPConfig, MLPStage
from tests.graphs.helpers import check_against_eager
from tests.models import joint_graph

TINY = MLPConfig.tiny()


def test_equals_a_sequence_of_layers_of_torch() -> None:
    stage = MLPStage(TINY, embed=True, head=True)
    layers: list[nn.Module] = [stage.get_submodule("embed")]
    for block in stage.blocks.values():
        layers += [block.get_submodule("linear"), nn.ReLU()]
    x = torch.randn(3, TINY.inputs)
    assert torch.equal(stage(x), nn.Sequential(*layers, stage.get_submodule("head"))(x))


def test_stages_in_a_row_equal_the_whole_model() -> None:
    first, last = MLPStage(TINY, range(2), embed=True), MLPStage(TINY, range(2, 4), head=True)
    x = torch.randn(3, TINY.inputs)
    assert torch.equal(last(first(x)), MLPStage(TINY, embed=True, head=True)(x))


def test_graphs_are_bitwise_equal_to_eager() -> None:
    check_against_eager(MLPStage(TINY, embed=True, head=True), (torch.randn(3, TINY.inputs, requires_grad=True),))


def test_values_keep_their_size_from_block_to_block() -> None:
    config = MLPConfig(width=256, layers=20)
    y = MLPStage(config)(torch.randn(64, 256))
    assert 0.3 < y.square().mean().sqrt() < 3.0


def test_region_paths_name_the_block_of_the_whole_model() -> None:
    graph = joint_graph.trace(MLPStage(TINY, [2, 3], head=True), torch.randn(3, TINY.width)).graph
    for side in ("forward", "backward"):
        found = {joint_graph.region(n) for n in graph.nodes if joint_graph.side(n) == side} - {""}
        assert found == {"block2/mlp", "block3/mlp", "head"}
