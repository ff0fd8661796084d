"""Activation checkpointing is honoured however it is reached, in direct and in strict tracing, or refused by name."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import annopipe as ap
from annopipe.errors import CaptureError
from tests.graphs.helpers import check_against_eager, saved_bytes
from tests.graphs.modules import Function, leaf, plain

bound_earlier = functools.partial(checkpoint, use_reentrant=False)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid())


def with_layers(forward: Callable[..., Any]) -> nn.Module:
    return Function(forward, layers=layers())


CHECKPOINTED: dict[str, Callable[[], nn.Module]] = {
    "function": lambda: with_layers(lambda s, x: checkpoint(s.layers, x, use_reentrant=False)),
    "reentrant": lambda: with_layers(lambda s, x: checkpoint(s.layers, x, use_reentrant=True)),
    "by its module": lambda: with_layers(
        lambda s, x: torch.utils.checkpoint.checkpoint(s.layers, x, use_reentrant=False)
    ),
    "bound earlier": lambda: with_layers(lambda s, x: bound_earlier(s.layers, x)),
    "sequential": lambda: with_layers(lambda s, x: checkpoint_sequential(s.layers, 2, x, use_reentrant=False)),
    "wrapper": lambda: nn.Sequential(checkpoint_wrapper(layers(), CheckpointImpl.NO_REENTRANT)),
    "wrapper, reentrant": lambda: nn.Sequential(checkpoint_wrapper(layers(), CheckpointImpl.REENTRANT)),
}


@pytest.mark.parametrize("name", [*CHECKPOINTED, "composable"])
def test_direct_tracing_honours_it(name: str) -> None:
    module = nn.Sequential(composable_checkpoint(layers())) if name == "composable" else CHECKPOINTED[name]()
    private = "_CheckpointFrame", "_checkpoint_without_reentrant_generator"
    before = [getattr(torch.utils.checkpoint, name) for name in private]
    found = ap.trace(module, (leaf(3, 4),))
    assert [getattr(torch.utils.checkpoint, name) for name in private] == before
    assert "apply" not in vars(torch.utils.checkpoint.CheckpointFunction)
    if "reentrant" not in name:  # eager refuses torch.autograd.grad there
        check_against_eager(module, (leaf(3, 4),), graphs=found)
    if name != "sequential":  # its last part is not checkpointed, and what the first hands on is saved
        assert any(row.phase == "recompute" for row in ap.region_table(found.backward))
        assert [p.name for p in found.forward.outputs if p.role == "saved"] == [
            p.name for p in found.backward.inputs if p.role == "saved"
        ]
        assert saved_bytes(found) == 3 * 4 * 4


def test_a_context_that_is_no_policy_is_refused_with_its_line() -> None:
    def contexts() -> Any:
        return torch.autocast("cpu"), torch.autocast("cpu")

    module = with_layers(lambda s, x: checkpoint(s.layers, x, use_reentrant=False, context_fn=contexts))
    with pytest.raises(
        CaptureError, match=r"context_fn that gives a autocast, .*: use create_selective.*\n  at .*\.py:\d+, in"
    ):
        ap.trace(module, (leaf(3, 4),))


def test_gradients_of_a_reentrant_checkpoint_are_eagers() -> None:
    module, x = CHECKPOINTED["reentrant"](), leaf(3, 4)
    graphs: Any = ap.trace(module, (x,))
    values = {**graphs.bind(module), **graphs.bind_inputs(x)}
    values |= graphs.forward(values)
    gradients = graphs.backward({**values, "tangent.output": torch.ones(3, 4)})
    module(x).backward(torch.ones(3, 4))
    own = graphs.parameter_gradients(gradients)
    assert all(torch.equal(p.grad, own[name]) for name, p in module.named_parameters() if p.grad is not None)
    assert torch.equal(x.grad, gradients["input_grad.x"])


@pytest.mark.parametrize("name", [name for name in CHECKPOINTED if name != "sequential"])
def test_strict_tracing_honours_it(name: str) -> None:
    module, plainly = CHECKPOINTED[name](), layers()
    found = ap.trace(module, (leaf(3, 4),), strict=True)
    saved = [p.name for p in found.forward.outputs if p.role == "saved"]
    everything = [p.name for p in ap.trace(plainly, (leaf(3, 4),)).forward.outputs if p.role == "saved"]
    assert len(saved) < len(everything)
    assert any(row.phase == "recompute" for row in ap.region_table(found.backward))
    if "reentrant" not in name:  # eager refuses torch.autograd.grad there
        check_against_eager(module, (leaf(3, 4),), graphs=found)


def test_strict_tracing_says_what_to_call_instead_of_checkpoint_sequential() -> None:
    with pytest.raises(
        CaptureError, match=r"call torch.utils.checkpoint.checkpoint per part\n  at .*test_checkpointing.py"
    ):
        ap.trace(CHECKPOINTED["sequential"](), (leaf(3, 4),), strict=True)


def test_a_checkpoint_under_no_grad_is_none() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = checkpoint(self.layers, x, use_reentrant=False) + checkpoint(self.layers, x, use_reentrant=True)
        return x * y

    check_against_eager(with_layers(forward), (leaf(3, 4),))


HOOKS = {
    "of the user": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t),
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_on_what_is_saved_are_refused_for_tracing_leaves_them_out(name: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with HOOKS[name]():
            return self.layers(x)

    enter = torch.autograd.graph.saved_tensors_hooks.__enter__
    with pytest.raises(CaptureError, match=r"forward uses torch.autograd.graph.saved_tensors_hooks .*take it out"):
        ap.trace(with_layers(forward), (leaf(3, 4),))
    with pytest.raises(CaptureError, match="cannot trace Function strictly: it calls"):
        ap.trace(with_layers(forward), (leaf(3, 4),), strict=True)
    assert torch.autograd.graph.saved_tensors_hooks.__enter__ is enter
    with torch.no_grad():
        assert forward(with_layers(forward), plain(3, 4)).shape == (3, 4)


def test_a_reentrant_checkpoint_whose_parameters_get_no_gradients_in_eager_is_refused() -> None:
    for strict in (False, True):
        with pytest.raises(
            CaptureError, match=r"use_reentrant=True.* of inputs that want no gradient .*: use use_reentrant=False\n"
        ):
            ap.trace(CHECKPOINTED["reentrant"](), (plain(3, 4),), strict=strict)
    ap.trace(CHECKPOINTED["function"](), (plain(3, 4),), strict=True)


def test_gradient_checkpointing_of_transformers_is_honoured() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = llama.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, attn_implementation="sdpa")
    model = llama.LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    args, kwargs = (torch.randint(0, 32, (2, 5)),), {"use_cache": False}
    for strict in (False, True):
        graphs = ap.trace(model, args, kwargs, strict=strict)
        check_against_eager(model, args, kwargs, graphs=graphs)
        assert any(row.phase == "recompute" for row in ap.region_table(graphs.backward))
