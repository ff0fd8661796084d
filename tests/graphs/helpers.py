"""Run a traced stage beside eager and compare everything bitwise: outputs, gradients, buffers, random state."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import annopipe as ap
from annopipe.graphs import meta


def same(a: Any, b: Any) -> bool:
    """Bitwise equality of two leaves (NaN equals NaN)."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
    return type(a) is type(b) and bool(a == b)


def assert_same(found: Any, expected: Any, what: str = "") -> None:
    found_leaves, found_spec = pytree.tree_flatten(found)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert found_spec == expected_spec, f"{what}: {found_spec} is not {expected_spec}"
    for index, (a, b) in enumerate(zip(found_leaves, expected_leaves, strict=True)):
        assert same(a, b), f"{what}[{index}] differs: {_difference(a, b)}"


def _difference(a: Any, b: Any) -> str:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype:
        size = (a - b).abs().max().item() if a.numel() and a.dtype != torch.bool else "?"
        return f"{a.dtype} {tuple(a.shape)}, by at most {size}"
    return f"{a} and {b}"


def fresh(tree: Any) -> Any:
    """The tree with every tensor copied to a leaf that requires grad as the original does; strides are kept."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        new = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
        return new.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(copied, tree)


class Eager:
    """One forward and backward of a copy of ``module`` by autograd.

    Attributes:
        output: what forward returned, detached.  tangents: by output path; random unless given.
        parameter_gradients, input_gradients: by name and by position among the tensor leaves; None where there is none.
        buffers: after forward.  random_state: after forward.
    """

    def __init__(self, module: nn.Module, args: tuple, kwargs: dict | None = None, loss_fn=None, target=None) -> None:
        module = copy.deepcopy(module)
        args, kwargs, target = fresh(args), fresh(kwargs or {}), fresh(target)
        torch.manual_seed(7)
        with torch.enable_grad():
            result = module(*args, **kwargs)
            loss = None if loss_fn is None else loss_fn(result, target)
        self.random_state = torch.get_rng_state()
        self.buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
        self.output = pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, result)
        self.loss = None if loss is None else loss.detach()
        keyed = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        roots = keyed if loss is None else [loss]
        generator = torch.Generator().manual_seed(3)
        self.tangents = [
            None if not r.requires_grad else torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype)
            for r in roots
        ]
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs, target)) if isinstance(leaf, Tensor)]
        wanted = {name: p for name, p in module.named_parameters() if p.requires_grad}
        inputs = [leaf for leaf in leaves if leaf.requires_grad]
        torch.manual_seed(11)
        pairs = [(r, t) for r, t in zip(roots, self.tangents, strict=True) if t is not None]
        gradients: list[Tensor | None] = [None] * (len(wanted) + len(inputs))
        if pairs and (wanted or inputs):
            gradients = list(
                torch.autograd.grad(
                    [r for r, _ in pairs],
                    [*wanted.values(), *inputs],
                    [t for _, t in pairs],
                    allow_unused=True,
                )
            )
        self.parameter_gradients = dict(zip(wanted, gradients[: len(wanted)], strict=True))
        self.input_gradients = gradients[len(wanted) :]


def tangent_values(graphs: Any, eager: Eager) -> dict[str, Any]:
    """Values for the tangent ports: those that eager used."""
    names = ["loss"] if graphs.layout.has_loss else list(graphs.layout.tensors)
    return {
        f"tangent.{name}": tangent for name, tangent in zip(names, eager.tangents, strict=True) if tangent is not None
    }


def gradients(graphs: Any, values: dict[str, Any]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Parameter gradients by name and input gradients in the order of the arguments, from backward graphs."""
    inputs = [values[p.name] for p in graphs.backward.outputs if p.role == "input_grad"]
    return graphs.parameter_gradients(values), inputs


def check_against_eager(
    module: nn.Module,
    args: tuple,
    kwargs: dict | None = None,
    *,
    graphs: Any = None,
    loss_fn=None,
    target=None,
    idle: bool = False,
) -> Any:
    """Trace (unless ``graphs`` are given), run forward, backward and the two halves of backward; compare with eager.

    Args:
        idle: gradients of zeros are fine where eager has none, for experts that get no token.
    """
    before = {name: t.detach().clone() for name, t in module.state_dict().items()} if not _is_meta(module) else {}
    eager = Eager(module, args, kwargs, loss_fn, target)
    if idle:
        eager.parameter_gradients = {
            name: torch.zeros_like(module.get_parameter(name)) if g is None else g
            for name, g in eager.parameter_gradients.items()
        }
    if graphs is None:
        torch.manual_seed(5)
        state = torch.get_rng_state()
        modes = {m: m.training for m in module.modules()}
        graphs = ap.trace(module, args, kwargs, loss_fn, target)
        assert torch.equal(torch.get_rng_state(), state), "tracing moved the random state"
        assert modes == {m: m.training for m in module.modules()}, "tracing changed a training mode"
    targets = {} if loss_fn is None else {"target": target}
    values = {**graphs.bind(module), **graphs.bind_inputs(*args, **(kwargs or {}), **targets)}
    torch.manual_seed(7)
    given = {name: (v.clone() if isinstance(v, Tensor) else v) for name, v in values.items()}
    out = graphs.forward(values)
    assert torch.equal(torch.get_rng_state(), eager.random_state), "the random state after forward differs from eager's"
    for name, value in given.items():
        assert same(values[name], value), f"forward changed {name}"
    assert_same(graphs.result(out), eager.output, "output")
    if loss_fn is not None:
        assert_same(out["loss"], eager.loss, "loss")
    scratch = copy.deepcopy(module)
    graphs.write_buffers(scratch, out)
    assert_same({name: b.detach() for name, b in scratch.named_buffers()}, eager.buffers, "buffers")
    _check_gradients(graphs, eager, {**values, **out, **tangent_values(graphs, eager)})
    for name, value in before.items():
        assert same(module.state_dict()[name].detach(), value), f"{name} has changed"
    return graphs


def _check_gradients(graphs: Any, eager: Eager, values: dict[str, Any]) -> None:
    expected = {name: g for name, g in eager.parameter_gradients.items() if g is not None}
    if graphs.backward is None:
        assert not expected
        assert not [g for g in eager.input_gradients if g is not None]
        return
    expected_inputs = [g for g in eager.input_gradients if g is not None]
    torch.manual_seed(11)
    whole = graphs.backward(values)
    assert_same(gradients(graphs, whole), (_ordered(expected, graphs.parameter_gradients(whole)), expected_inputs), "B")
    torch.manual_seed(11)
    first = graphs.backward_input(values)
    halves = {**first, **graphs.backward_weight({**values, **first})}
    assert_same(
        gradients(graphs, halves), (_ordered(expected, graphs.parameter_gradients(halves)), expected_inputs), "I+W"
    )


def _ordered(expected: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    assert set(expected) == set(like), f"parameters with gradients: {sorted(like)}, expected {sorted(expected)}"
    return {name: expected[name] for name in like}


def _is_meta(module: nn.Module) -> bool:
    return any(t.is_meta for t in (*module.parameters(), *module.buffers()))


def saved_bytes(graphs: Any) -> int:
    nodes = graphs.forward.graph.output_node().args[0]
    ports = zip(graphs.forward.outputs, nodes, strict=True)
    return sum(meta.size_bytes(node) or 0 for port, node in ports if port.role == "saved")
