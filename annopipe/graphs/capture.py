"""Adapter to AOTAutograd: one module and example tensors in, one joint forward-backward FX graph with descriptors out.

The only file that imports ``torch._functorch`` and ``torch._subclasses``. Source: ``torch/_functorch/aot_autograd.py``
(``aot_export_joint_with_descriptors``) and ``torch/_functorch/_aot_autograd/descriptors.py``.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["Described", "JointGraph", "export_joint"]


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """What one input or output of a joint graph is.

    kind: param, buffer, input, tangent; output, mutation, grad; or other.
    target: parameter or buffer name as text, position of an argument or output as a number.
    of: for a mutation or gradient, what is mutated or differentiated; for a tangent, the output.
    """

    kind: str
    target: str | int = ""
    of: "Described | None" = None


@dataclasses.dataclass(frozen=True)
class JointGraph:
    """A traced joint graph and what its placeholders and outputs are, in order."""

    module: fx.GraphModule
    inputs: tuple[tuple[fx.Node, Described], ...]
    outputs: tuple[tuple[fx.Node | None, Described], ...]  # no node: a gradient that is always None


def export_joint(module: nn.Module, tensors: Sequence[torch.Tensor]) -> JointGraph:
    """Trace ``module(*tensors)`` forward and backward with fake tensors of the same shapes, strides and dtypes.

    Every example becomes a fake tensor of its own, so that one tensor passed twice stays two inputs. Data-dependent sizes
    become symbols. Gradients are traced for what requires them.
    """
    with contextlib.ExitStack() as stack:
        mode = detect_fake_mode([*tensors, *module.parameters(), *module.buffers()])
        if mode is None:
            mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        stack.enter_context(mode)
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        fakes = tuple(_fake_like(t) for t in tensors)
        exported = aot_export_joint_with_descriptors(stack, module, fakes)
    graph_module = exported.graph_module
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    output = graph_module.graph.output_node()
    returned, described = output.args[0], output.meta["desc"]
    return JointGraph(
        graph_module,
        tuple((node, _describe(node.meta["desc"])) for node in placeholders),
        tuple((node, _describe(d)) for node, d in zip(returned, described, strict=True)),  # type: ignore[arg-type]
    )


def _fake_like(tensor: torch.Tensor) -> torch.Tensor:
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad)


def _describe(descriptor: Any) -> Described:
    match descriptor:
        case aot.ParamAOTInput(target=target):
            return Described("param", target)
        case aot.BufferAOTInput(target=target):
            return Described("buffer", target)
        case aot.PlainAOTInput(idx=index):
            return Described("input", index)
        case aot.TangentAOTInput(output=output):
            return Described("tangent", of=_describe(output))
        case aot.PlainAOTOutput(idx=index):
            return Described("output", index)
        case aot.InputMutationAOTOutput(mutated_input=mutated):
            return Described("mutation", of=_describe(mutated))
        case aot.GradAOTOutput(grad_of=source):
            return Described("grad", of=_describe(source))
    return Described("other", "None" if descriptor is None else descriptor.expr())
