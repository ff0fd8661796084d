"""Adapter to AOTAutograd: one module and example tensors in, one joint forward-backward FX graph with descriptors out.

The only file that imports ``torch._functorch`` and ``torch._subclasses``. Sources:
``torch/_functorch/aot_autograd.py`` (``aot_export_joint_with_descriptors``) and ``_aot_autograd/descriptors.py`` there.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributed.tensor import DTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from annopipe import pytrees
from annopipe.graphs.eager_kernels import eager_kernels

__all__ = [
    "Described",
    "ForeignTensorError",
    "JointGraph",
    "export_joint",
    "foreign_tensors_as_constants",
    "without_memory",
    "without_values",
]

_LIFTS = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})

_TOKENS = (
    aot.ForwardTokenAOTInput,
    aot.BackwardTokenAOTInput,
    aot.ForwardTokenAOTOutput,
    aot.BackwardTokenAOTOutput,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """What one input or output of a joint graph is.

    kind: param, buffer, input, tangent; output, mutation, grad; token (orders operations with effects); or other.
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


class ForeignTensorError(Exception):
    """A forward does to a tensor that is neither its module's nor an argument what no graph can replay."""


def export_joint(module: nn.Module, tensors: Sequence[torch.Tensor], stays: Callable[[fx.Node], bool]) -> JointGraph:
    """Trace ``module(*tensors)`` forward and backward with fake tensors of the same shapes, strides and dtypes.

    Every example becomes a fake tensor of its own, so that one tensor passed twice stays two inputs. Data-dependent
    sizes become symbols. Gradients are traced for what requires them. Operations are those that eager PyTorch runs.

    Args:
        stays: which nodes stay even if nobody uses their result; AOTAutograd removes the others.
    """
    with contextlib.ExitStack() as stack:
        mode = detect_fake_mode([*tensors, *module.parameters(), *module.buffers()])
        if mode is None:
            mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        stack.enter_context(mode)
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(fx_traceback.preserve_node_meta())  # AOT turns it on only when there are gradients
        stack.enter_context(eager_kernels())
        stack.enter_context(_keeping(stays))
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


@contextlib.contextmanager
def foreign_tensors_as_constants() -> Iterator[None]:
    """While a forward is traced: tensors that are neither the module's nor arguments are constants of the graph.

    What is computed from them may be changed in place, as in eager; they themselves may not, nor want a gradient.

    Raises:
        ForeignTensorError: at the operation that does it, so that the traceback has the user's line.
    """
    with _ForeignTensors():
        yield


class _ForeignTensors(TorchDispatchMode):
    """Gives each foreign tensor that an operation takes a wrapper that AOTAutograd functionalizes like other values."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wrappers: dict[int, tuple[torch.Tensor, Any]] = {}  # by id: the tensor, its wrapper

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether torch.compile inside stays as it is."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor runs operations on local tensors, which come here
        if not isinstance(func, torch._ops.OpOverload) or func in _LIFTS:
            return func(*args, **kwargs)
        differentiable = torch.is_grad_enabled() and func is not torch.ops.aten.detach.default
        wrap = functools.partial(self._wrapped, differentiable=differentiable)
        args, kwargs = pytrees.tree_map_only(torch.Tensor, wrap, (args, kwargs))
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            for tensor, wrapper in self._wrappers.values():
                if torch._functionalize_has_data_mutation(wrapper.elem):  # type: ignore[attr-defined]
                    raise ForeignTensorError(f"it changes {_told(tensor)}: make it a buffer")
        return result

    def _wrapped(self, tensor: torch.Tensor, *, differentiable: bool) -> torch.Tensor:
        if isinstance(tensor, FunctionalTensor) or torch._is_functional_tensor(tensor):
            return tensor
        if tensor.requires_grad and differentiable:
            raise ForeignTensorError(f"it uses {_told(tensor)} but requires grad: make it a parameter, or detach it")
        if id(tensor) not in self._wrappers:
            self._wrappers[id(tensor)] = (tensor, FunctionalTensor.to_functional(tensor.detach()))
        return self._wrappers[id(tensor)][1]


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Tensors made inside have a device, shape and type but no memory, so that any size of model can be traced.

    On "meta" the operations would be those that have no fused kernel; here they are the device's own.
    """
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        yield


def without_values(like: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Examples like those values, nested as they are: without memory, fake in the mode of ``tensors`` if those are.

    Floating-point ones require grad, as what one stage hands to the next does.

    >>> with without_memory():
    ...     weight = torch.ones(2)
    >>> [example] = without_values([torch.ones(3)], [weight])
    >>> example.shape, example.requires_grad
    (torch.Size([3]), True)
    """
    mode = detect_fake_mode(list(tensors)) or FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with mode:
        found = pytrees.tree_map_only(torch.Tensor, _fake_like, tuple(like))
    made: tuple[Any, ...] = pytrees.tree_map_only(
        torch.Tensor, lambda fake: fake.requires_grad_(fake.is_floating_point()), found
    )
    return made


def _told(tensor: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)} that is neither the module's nor an argument"


def _fake_like(tensor: torch.Tensor) -> torch.Tensor:
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _keeping(stays: Callable[[fx.Node], bool]) -> Iterator[None]:
    """Keep AOTAutograd from removing nodes that have effects it does not know of."""
    original = fx.Graph.eliminate_dead_code

    def eliminate(graph: fx.Graph, is_impure_node: Callable[[fx.Node], bool] | None = None) -> bool:
        impure = fx.Node.is_impure if is_impure_node is None else is_impure_node
        return original(graph, lambda node: impure(node) or stays(node))

    fx.Graph.eliminate_dead_code = eliminate  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        fx.Graph.eliminate_dead_code = original  # type: ignore[method-assign]


def _describe(descriptor: Any) -> Described:
    if isinstance(descriptor, _TOKENS):
        return Described("token")
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
        case aot.ViewBaseAOTInput(base_of=source) | aot.SyntheticBaseAOTInput(base_of=source):
            return Described("base", of=_describe(source))
    return Described("other", "None" if descriptor is None else descriptor.expr())
