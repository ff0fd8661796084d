"""Every traced node knows which module made it, and recording that leaves the module and other annotations alone."""

from typing import Any

import pytest
import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_module

import annopipe as ap
from annopipe.graphs import meta
from annopipe.graphs.module_paths import MODULE_KEY, recorded_module_paths
from annopipe.graphs.stage_graph import body
from tests.graphs.modules import Function, leaf, plain


def paths(graph: Any) -> dict[str, str]:
    """By operator: the module of the last node that calls it."""
    return {n.target.__name__.partition(".")[0]: meta.module_path(n) for n in body(graph.graph) if callable(n.target)}


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](x.cos()).exp()


def test_a_node_has_the_path_of_the_innermost_module_forward_and_backward() -> None:
    graphs = ap.trace(Function(lambda self, x: self.outer(x.tanh()).neg(), outer=Outer()), (leaf(2),))
    assert paths(graphs.forward) == {"tanh": "", "cos": "outer", "sin": "outer.layers.1", "exp": "outer", "neg": ""}
    assert paths(graphs.backward)["cos"] == "outer.layers.1", "the derivative of sin"


def test_hooks_are_gone_afterwards_and_annotations_as_before_also_on_an_exception() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        raise KeyError(self.inner(x))

    before = len(torch_module._global_forward_pre_hooks), len(torch_module._global_forward_hooks)
    module = Function(lambda self, x: self.failing(x), failing=Function(forward, inner=Inner()))
    with fx_traceback.annotate({"other": 1}):
        with pytest.raises(KeyError), recorded_module_paths(module):
            module(plain(2))
        assert fx_traceback.get_current_meta()["custom"] == {"other": 1}
    assert (len(torch_module._global_forward_pre_hooks), len(torch_module._global_forward_hooks)) == before


def test_other_modules_are_not_recorded_and_other_annotations_stay() -> None:
    seen = []
    stranger = Function(lambda _, x: seen.append(dict(fx_traceback.get_current_meta().get("custom", {}))) or x)
    module = Function(lambda _, x: stranger(x))
    outer = Function(lambda self, x: self.module(x), module=module)
    with recorded_module_paths(outer), fx_traceback.annotate({"other": 1}):
        outer(plain(2))
    assert seen == [{"other": 1, MODULE_KEY: "module"}]


def test_a_path_is_read_from_upstreams_annotation_or_from_a_module_stack() -> None:
    node = fx.Graph().call_function(torch.sin)
    assert meta.module_path(node) == ""
    stack = {"a": ("L['self'].model", Outer), "b": ("L['self'].model.layers['3']._modules['moe']", Inner)}
    node.meta["nn_module_stack"] = stack
    assert meta.module_path(node) == "model.layers.3.moe"
    node.meta["custom"] = {MODULE_KEY: "mine"}
    assert meta.module_path(node) == "mine"
    node.meta["custom"] = {MODULE_KEY: "mine", "module_fqn": "layers.3"}
    assert meta.module_path(node) == "layers.3"
