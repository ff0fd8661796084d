"""Trace a module into a joint forward-backward graph, split it, run it and count what matters.

Shared by tests and by the worker processes; written against PyTorch alone, so that the models are tested without the
rest of annopipe.
"""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._functorch.partitioners import default_partition
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

LAUNCHES = ("_c10d_functional.all_to_all_single.default", "annopipe.exchange.default")
WAIT = "_c10d_functional.wait_tensor.default"
HOST_READ = "aten._local_scalar_dense.default"


def trace(module: nn.Module, x: Tensor) -> fx.GraphModule:
    """The joint graph of ``module(x)`` with gradients of the parameters and of ``x``."""
    with ExitStack() as stack:
        fake = stack.enter_context(FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))
        example = fake.from_tensor(x.detach(), static_shapes=True).requires_grad_(True)
        return aot_export_joint_with_descriptors(stack, module, (example,)).graph_module


def split(joint: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward graphs.

    The stock partitioner copies the forward's exchanges into the backward, where nobody uses them, and removes only the
    collectives that it knows: they would be launched again and never waited for.
    """
    forward, backward = default_partition(joint, None, num_fwd_outputs=1)
    backward.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    backward.recompile()
    return forward, backward


def run(module: nn.Module, x: Tensor, grad: Tensor, graphs: tuple[fx.GraphModule, fx.GraphModule]) -> list[Tensor]:
    """Output, parameter gradients and input gradient of the split graphs; saved values are bound by name."""
    forward, backward = graphs
    with torch.no_grad():
        values = forward(*module.parameters(), *module.buffers(), x)
        nodes: Any = forward.graph.output_node().args[0]
        saved = {node.name: value for node, value in zip(nodes, values, strict=True)}
        placeholders = [node.name for node in backward.graph.find_nodes(op="placeholder")]
        gradients = backward(*(grad if name.startswith("tangents") else saved[name] for name in placeholders))
    return [values[0], *(g for g in gradients if g is not None)]


def eager(module: nn.Module, x: Tensor, grad: Tensor) -> list[Tensor]:
    """The same from autograd."""
    x = x.detach().requires_grad_(True)
    y = module(x)
    return [y.detach(), *torch.autograd.grad(y, [*module.parameters(), x], grad)]


def target(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_function" else ""


def counts(graph: fx.Graph) -> Counter:
    return Counter(target(node) for node in graph.nodes)


def region(node: fx.Node) -> str:
    return (node.meta.get("custom") or {}).get("annopipe", "")


def side(node: fx.Node) -> str:
    return {"is_forward": "forward", "is_backward": "backward"}.get(node.meta.get("partitioner_tag", ""), "")
