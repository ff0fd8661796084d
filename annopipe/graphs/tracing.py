"""``trace``: from a module and example arguments to the graphs of a stage.

The steps, top to bottom: name the arguments; run the module under AOT tracing inside a wrapper that sees what it changes;
describe the joint graph's inputs and outputs by ports; clean it; split it; give every node its region.
"""

import contextlib
import inspect
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx, nn
from torch.utils import _pytree as pytree

from annopipe.errors import AnnopipeError, CaptureError
from annopipe.graphs.arguments import TARGET, Arguments, Guard, flatten_arguments, leaf_paths
from annopipe.graphs.attributes import SideEffects, untouched_random_state
from annopipe.graphs.capture import Described, JointGraph, export_joint
from annopipe.graphs.cleanup import BOUNDARY_KEY, clean_joint_graph
from annopipe.graphs.meta import value
from annopipe.graphs.partition import partition
from annopipe.graphs.ports import Port
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph
from annopipe.graphs.stage_graphs import OutputLayout, StageGraphs

__all__ = ["trace"]

_INNER = "stage"
_OWN_FOLDERS = (Path(torch.__file__).parent, Path(__file__).parent, Path(contextlib.__file__).parent / "contextlib.py")


def trace(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    target: Any = None,
) -> StageGraphs:
    """Trace one stage into explicit forward and backward graphs that carry the module's tags.

    Nothing is computed and nothing about the module changes: parameters, buffers, attributes and random state stay as they
    are. Updates of buffers are outputs of the forward graph (``graphs.write_buffers`` writes them). Sizes that depend on data
    (dropless routing) stay symbolic, so one trace serves 0, 1 and many tokens; other shapes are fixed.

    Args:
        module: any ``nn.Module``; on CPU, on GPU, or on "meta" or fake tensors.
        args, kwargs: example arguments. Tensors become ports; gradients are traced for those that require them. Everything else
            is a guarded constant: the graphs refuse another value.
        loss_fn: ``loss_fn(output, target)`` of the last stage; the graph then has a loss port, and only the loss has a tangent.
        target: example target for ``loss_fn``.

    Raises:
        CaptureError: the module cannot be traced (the message names the user's line), changes parameters, arguments or its own
            attributes in forward, or has nothing to differentiate although gradients are asked for.

    >>> graphs = trace(nn.Linear(3, 2), (torch.ones(4, 3),))
    >>> [port.name for port in graphs.forward.inputs]
    ['param.weight', 'param.bias', 'input.input']
    """
    signature = inspect.signature(module.forward)
    arguments = flatten_arguments(signature, f"{type(module).__name__}.forward", args, kwargs or {})
    target_arguments = _target_arguments(signature, loss_fn, target)
    wrapper = _Wrapper(module, arguments, loss_fn, target_arguments)
    tensors = (*arguments.tensors, *target_arguments.tensors)
    with untouched_random_state() as frozen, _explained(module), _training_kept(module):
        joint = export_joint(wrapper, tensors)
    if frozen:
        raise CaptureError(
            f"{type(module).__name__}.forward draws from {' and '.join(frozen)}: the number would be frozen into the graph; "
            "draw with torch instead, or pass the number as an argument"
        )
    graph = _stage_graph(joint, module, wrapper, (*arguments.paths, *target_arguments.paths))
    asked = any(t.requires_grad for t in (*tensors, *module.parameters()))
    if asked and not any(port.role == "tangent" for port in graph.inputs):
        raise CaptureError(
            f"gradients are asked for (a parameter or an argument of {type(module).__name__} requires grad), but no output "
            "depends on them differentiably: return a differentiable output, or turn requires_grad off"
        )
    forward, backward = partition(graph)
    for part in (forward, backward):
        if part is not None:
            place(part)
    return StageGraphs(forward, backward, arguments, target_arguments, wrapper.layout)


class _Wrapper(nn.Module):
    """Calls the module on flat tensors, refuses what it changes, and returns flat tensors that alias nothing.

    AOTAutograd would leave outputs that are views out of the graph; a copy at the boundary keeps them in, and cleanup takes
    the copies out again.
    """

    def __init__(
        self, module: nn.Module, arguments: Arguments, loss_fn: Callable[..., Any] | None, target: Arguments
    ) -> None:
        super().__init__()
        self.add_module(_INNER, module)
        self._arguments = arguments
        self._target = target
        self._loss_fn = loss_fn
        self.layout = OutputLayout((), (), (), None)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        module = self.get_submodule(_INNER)
        call = self._arguments.rebuild(dict(zip(self._arguments.paths, tensors, strict=False)))
        before = SideEffects(module)
        result = module(*call.args, **call.kwargs)
        loss = None
        if self._loss_fn is not None:
            targets = dict(zip(self._target.paths, tensors[len(self._arguments.paths) :], strict=True))
            loss = self._loss_fn(result, *self._target.rebuild(targets).args)
            if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
                raise CaptureError("loss_fn returns one scalar tensor; add up a per-token loss inside it")
        if changed := before.restore():
            raise CaptureError(
                f"{type(module).__name__}.forward changes {', '.join(changed)} on the module: a graph cannot replay that, and "
                "two microbatches in flight would share it; return the value from forward, or update a buffer in place"
            )
        return self._flatten(result, loss)

    def _flatten(self, result: Any, loss: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        leaves, spec = pytree.tree_flatten(result)
        paths = leaf_paths(result, "output")
        for path, leaf in zip(paths, leaves, strict=True):
            if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise CaptureError(f"{path} is a number that depends on data: return it as a tensor")
        tensors = {path: leaf for path, leaf in zip(paths, leaves, strict=True) if isinstance(leaf, torch.Tensor)}
        constants = tuple(Guard(p, leaf) for p, leaf in zip(paths, leaves, strict=True) if p not in tensors)
        self.layout = OutputLayout(tuple(paths), tuple(tensors), constants, spec, has_loss=loss is not None)
        outputs = list(tensors.values()) if loss is None else [loss, *(t.detach() for t in tensors.values())]
        with fx_traceback.annotate({BOUNDARY_KEY: True}):
            return tuple(output.clone() for output in outputs)


def _target_arguments(signature: inspect.Signature, loss_fn: Callable[..., Any] | None, target: Any) -> Arguments:
    if loss_fn is None:
        if target is not None:
            raise CaptureError("target is only used by loss_fn: pass loss_fn too")
        return flatten_arguments(inspect.Signature(), "no loss", (), {})
    if TARGET in signature.parameters:
        raise CaptureError(f"forward has a parameter named {TARGET!r}, the name of loss_fn's second argument: rename it")
    only_target = inspect.Signature([inspect.Parameter(TARGET, inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    return flatten_arguments(only_target, "loss_fn", (target,), {})


def _stage_graph(joint: JointGraph, module: nn.Module, wrapper: _Wrapper, paths: tuple[str, ...]) -> StageGraph:
    """The joint graph as a stage graph, its placeholders and results described by ports."""
    clean_joint_graph(joint.module.graph)
    canonical = _canonical_names(module)
    outputs = _output_ports(wrapper.layout)
    inputs = [_input_port(node, described, canonical, paths, outputs) for node, described in joint.inputs]
    results: list[tuple[Port, fx.Node]] = []
    kept = joint.module.graph.output_node().args[0]
    for (_, described), node in zip(joint.outputs, kept, strict=True):  # type: ignore[arg-type]
        if isinstance(node, fx.Node):
            results.append((_result_port(node, described, canonical, paths, outputs), node))
    graph = joint.module.graph
    graph.output_node().args = (tuple(node for _, node in results),)
    graph.lint()
    attributes = {
        node.target: _attribute(joint.module, str(node.target)) for node in graph.find_nodes(op="get_attr", sort=False)
    }
    guards = (*wrapper._arguments.guards, *wrapper._target.guards)
    return StageGraph(graph, inputs, [port for port, _ in results], attributes=attributes, guards=guards)


def _output_ports(layout: OutputLayout) -> list[str]:
    return [*(["loss"] if layout.has_loss else []), *layout.tensors]


def _input_port(
    node: fx.Node, described: Described, canonical: dict[str, str], paths: tuple[str, ...], outputs: list[str]
) -> Port:
    fake = value(node)
    if described.kind in ("param", "buffer"):
        name = str(described.target).removeprefix(f"{_INNER}.")
        return Port.of("param" if described.kind == "param" else "buffer", canonical[name], fake, label=name)
    if described.kind == "input":
        return Port.of("input", paths[int(described.target)], fake)
    if described.kind == "tangent" and described.of is not None and described.of.kind == "output":
        return Port.of("tangent", outputs[int(described.of.target)], fake)
    if described.kind == "tangent" and described.of is not None and described.of.of is not None:
        raise _mutation_error(described.of.of, paths)
    raise CaptureError(f"the traced graph has an input that annopipe does not support: {described}")


def _result_port(
    node: fx.Node,
    described: Described,
    canonical: dict[str, str],
    paths: tuple[str, ...],
    outputs: list[str],
) -> Port:
    fake, of = value(node), described.of
    if described.kind == "output":
        name = outputs[int(described.target)]
        if name == "loss":
            return Port.of("loss", "", fake)
        return Port(**{**_fields(Port.of("output", name, fake)), "name": name})
    target = "" if of is None else str(of.target).removeprefix(f"{_INNER}.")
    if described.kind == "grad" and of is not None:
        if of.kind == "input":
            return Port.of("input_grad", paths[int(of.target)], fake)
        return Port.of("param_grad", canonical[target], fake, label=target)
    if described.kind == "mutation" and of is not None and of.kind == "buffer":
        return Port.of("buffer_update", canonical[target], fake, label=target)
    if described.kind == "mutation" and of is not None:
        raise _mutation_error(of, paths)
    raise CaptureError(f"the traced graph has an output that annopipe does not support: {described}")


def _mutation_error(changed: Described, paths: tuple[str, ...]) -> CaptureError:
    if changed.kind == "buffer":
        name = str(changed.target).removeprefix(f"{_INNER}.")
        return CaptureError(f"forward updates buffer {name} with a value that requires grad: update it under torch.no_grad()")
    is_param = changed.kind == "param"
    what = f"parameter {str(changed.target).removeprefix(f'{_INNER}.')}" if is_param else f"argument {paths[int(changed.target)]}"
    return CaptureError(
        f"forward changes {what} in place: a stage may only update its buffers; make it a buffer, or work on a copy"
    )


def _fields(port: Port) -> dict[str, Any]:
    return {name: getattr(port, name) for name in Port.__slots__}


def _canonical_names(module: nn.Module) -> dict[str, str]:
    """Every name of every parameter and buffer, mapped to the first name of the same tensor (tied weights share one)."""
    first: dict[int, str] = {}
    names = {}
    for name, tensor in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
        names[name] = first.setdefault(id(tensor), name)
    return names


def _attribute(module: fx.GraphModule, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


@contextlib.contextmanager
def _training_kept(module: nn.Module) -> Iterator[None]:
    """Modes that a forward switched stay as they were."""
    modes = {child: child.training for child in module.modules()}
    try:
        yield
    finally:
        for child, training in modes.items():
            child.training = training


class _explained(contextlib.AbstractContextManager):  # noqa: N801 - reads as a statement
    """Turn whatever tracing raises into a CaptureError that names the user's line."""

    def __init__(self, module: nn.Module) -> None:
        self._module = type(module).__name__

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, AnnopipeError) or not isinstance(error, Exception):
            return False
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CaptureError(f"cannot trace {self._module}: {reason} ({type(error).__name__}){_user_line(trace)}") from error


def _user_line(trace: types.TracebackType | None) -> str:
    frames = [f for f in traceback.extract_tb(trace) if not any(Path(f.filename).is_relative_to(o) for o in _OWN_FOLDERS)]
    own = [f for f in frames if f.filename != __file__ and not f.filename.startswith("<")]
    return f"\n  at {own[-1].filename}:{own[-1].lineno}, in {own[-1].name}: {own[-1].line}" if own else ""
