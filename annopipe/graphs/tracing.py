"""``trace``: from a module and example arguments to the graphs of a stage.

The steps, top to bottom: name the arguments; run the module under AOT tracing inside a call that sees what it changes;
take out what is only there because of tracing; describe inputs and outputs by ports; split; give every node its region.
"""

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from annopipe.errors import CaptureError
from annopipe.graphs.arguments import TARGET, Arguments, flatten_arguments
from annopipe.graphs.attributes import SideEffects
from annopipe.graphs.balanced_sizes import record_balanced_sizes
from annopipe.graphs.calling import TracedCall, call_stage
from annopipe.graphs.capture import ForeignTensorError, export_joint
from annopipe.graphs.checkpointing import CheckpointError, checkpoints_marked
from annopipe.graphs.cleanup import clean_joint_graph
from annopipe.graphs.describing import Names, described
from annopipe.graphs.dtypes import refuse_mixed_dtypes
from annopipe.graphs.dynamo import Captured, capture
from annopipe.graphs.effects import without_tokens
from annopipe.graphs.failures import Explained
from annopipe.graphs.foreign_tags import UPSTREAM_TAGS, ForeignTag, checked_tags, translate
from annopipe.graphs.hit_proof import marks_hits, prove_hit_loops
from annopipe.graphs.ops import has_effect, note_declarations
from annopipe.graphs.partition import partition
from annopipe.graphs.random_state import untouched_random_state
from annopipe.graphs.recompute_choice import Recompute, RecomputeChoice, mark_choice, recompute_choice
from annopipe.graphs.regions import place
from annopipe.graphs.replay import replay
from annopipe.graphs.stage_graph import StageGraph
from annopipe.graphs.stage_graphs import StageGraphs

__all__ = ["trace"]


def trace(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    target: Any = None,
    *,
    strict: bool = False,
    tags: Iterable[ForeignTag] = UPSTREAM_TAGS,
    recompute: Recompute = None,
) -> StageGraphs:
    """Trace one stage into explicit forward and backward graphs that carry the module's tags.

    Nothing is computed and nothing about the module changes: parameters, buffers, attributes and random state stay as
    they are. Updates of buffers are outputs of the forward graph (``graphs.write_buffers`` writes them). Sizes that
    depend on data (dropless routing) stay symbolic, so one trace serves 0, 1 and many tokens; other shapes are fixed.
    The graphs run what eager PyTorch would run, so values and gradients are equal to eager's bit by bit. Known to
    differ in the last bits: gradients of ``prod``, float32 ``nn.LSTM`` on CPU, and, under autocast, gradients of a
    weight that is used more than once (eager's cast is shared).

    Direct tracing runs ``forward`` and sees tensor operations only: it freezes the Python values that forward reads,
    and refuses hooks on saved tensors. Strict tracing has Dynamo read ``forward`` first. The graphs are the same, but
    they refuse a module whose attributes, globals or closure variables have changed since, and a forward that is not
    one graph is refused. Both honour ``torch.utils.checkpoint``: what it covers is computed again in the backward
    instead of saved, as is what ``recompute`` names, but for communication, host reads, sorting and random numbers,
    which happen once. Buffers are updated once, too, where eager's checkpoint updates them twice.

    What forward gives to ``ap.auxiliary_loss`` is added up in the output port ``auxiliary_loss``, which has a tangent.

    Args:
        module: any ``nn.Module``; on CPU, on GPU, or on "meta" or fake tensors.
        args, kwargs: example arguments. Tensors become ports; gradients are traced for those that require them.
            Everything else is a guarded constant: the graphs refuse another value.
        loss_fn: ``loss_fn(output, target)`` of the last stage; the graph then has a loss port, and only the loss has a
            tangent.
        target: example target for ``loss_fn``.
        strict: capture by Dynamo, which takes longer and refuses more.
        recompute: what the backward computes again instead of having it saved: the name of a region ("attention", or
            "moe/experts"), several, "all", or a memory budget from 0 to 1, as PyTorch's ``activation_memory_budget``.
            Each layer of a region still saves what it hands on.
        tags: which annotations of other code are regions; ``(*ap.UPSTREAM_TAGS, ap.ForeignTag(...))`` adds your own.

    Raises:
        CaptureError: the module cannot be traced (the message names the user's line), changes parameters, arguments or
            its own attributes in forward, or has nothing to differentiate although gradients are asked for.

    >>> graphs = trace(nn.Linear(3, 2), (torch.ones(4, 3),))
    >>> [port.name for port in graphs.forward.inputs]
    ['param.weight', 'param.bias', 'input.input']
    >>> module = nn.Sequential(nn.Linear(3, 2), nn.GELU(), nn.Tanh())
    >>> [port.name for port in trace(module, (torch.ones(4, 3),), recompute="all").forward.outputs]
    ['output', 'saved.input.input']
    >>> module = nn.Dropout(0.1)
    >>> graphs = trace(module, (torch.ones(2),), strict=True)
    >>> module.p = 0.2
    >>> graphs.bind(module)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    annopipe.errors.CaptureError: self.p was 0.1 when the module was traced and is 0.2 now; the graphs hold ...
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CaptureError(
            f"kwargs is a dictionary of keyword arguments, got {type(kwargs).__name__}; for two positional arguments: "
            "trace(module, (x, y))"
        )
    with _ONE_AT_A_TIME:
        choice = recompute_choice(recompute)
        return _trace(module, args, kwargs or {}, loss_fn, target, checked_tags(tags), choice, strict=strict)


def _trace(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss_fn: Callable[..., Any] | None,
    target: Any,
    tags: tuple[ForeignTag, ...],
    recompute: RecomputeChoice,
    *,
    strict: bool,
) -> StageGraphs:
    _refuse_untraceable_modules(module)
    _refuse_trained_losses(module, loss_fn)
    signature = inspect.signature(module.forward)
    arguments = flatten_arguments(signature, f"{type(module).__name__}.forward", args, kwargs)
    target_arguments = _target_arguments(signature, loss_fn, target)
    tensors = (*arguments.tensors, *target_arguments.tensors)
    plain = (ForeignTensorError, CheckpointError)
    captured = _captured(module, arguments, loss_fn, target_arguments) if strict else Captured(call_stage)
    call = TracedCall(module, arguments, loss_fn, target_arguments, captured.run)
    checkpoints = contextlib.nullcontext() if strict else checkpoints_marked()
    with untouched_random_state(), _kept(module), Explained(module, plain=plain), checkpoints:
        joint = without_tokens(export_joint(call, tensors, lambda node: has_effect(node) or marks_hits(node)))
    if call.moved:
        raise CaptureError(
            f"{type(module).__name__}.forward {' and '.join(call.moved)}: that happens while tracing, and not again "
            "when the graph runs; draw with torch from its default generator, or pass the number as an argument"
        )
    note_declarations(joint.module.graph.nodes)
    prove_hit_loops(joint.module.graph, lambda name: getattr(joint.module, name))
    translate(joint.module.graph, tags)
    refuse_mixed_dtypes(joint.module.graph.nodes, type(module).__name__)
    clean_joint_graph(joint.module.graph)
    record_balanced_sizes(joint.module.graph)
    outputs = [*call.layout.losses, *call.layout.tensors]
    names = Names(module, (*arguments.paths, *target_arguments.paths), outputs)
    graph = described(joint, names, (*arguments.guards, *target_arguments.guards))
    _refuse_lost_gradients(module, tensors, graph)
    mark_choice(graph, recompute)
    forward, backward = partition(graph)
    for part in (forward, backward):
        if part is not None:
            place(part)
    modes = {name: child.training for name, child in module.named_modules()}
    frozen = frozenset(name for name, p in module.named_parameters() if not p.requires_grad)
    known = arguments.without_tensors(), target_arguments.without_tensors()
    return StageGraphs(forward, backward, *known, call.layout, modes, frozen, names.canonical, captured.guards)


def _captured(
    module: nn.Module, arguments: Arguments, loss_fn: Callable[..., Any] | None, target: Arguments
) -> Captured:
    """The stage as Dynamo captures it."""
    call = arguments.with_own_tensors()
    given = {"self": module, "args": call.args, "kwargs": call.kwargs, "loss_fn": loss_fn}
    with untouched_random_state(), _kept(module), Explained(module):
        captured = capture(
            call_stage,
            {**given, "target": target.with_own_tensors().args},
            what=type(module).__name__,
            stay=["loss_fn"],
            replay=lambda graph_module, *inputs: replay(graph_module, module, *inputs),
        )
    effects = SideEffects(module)  # what it sees is compared, and put back, when the capture runs
    if lost := [change.name for change in captured.changes if not effects.sees(change.target)]:
        raise CaptureError(
            f"{type(module).__name__}.forward changes {', '.join(lost)}: a graph cannot replay that, and two "
            "microbatches in flight would share it; return the value from forward"
        )
    return captured


# Tracing replaces kernels and generators of the process while it runs.
_ONE_AT_A_TIME = threading.RLock()


def _target_arguments(signature: inspect.Signature, loss_fn: Callable[..., Any] | None, target: Any) -> Arguments:
    if loss_fn is None:
        if target is not None:
            raise CaptureError("target is only used by loss_fn: pass loss_fn too")
        return flatten_arguments(inspect.Signature(), "no loss", (), {})
    if TARGET in signature.parameters:
        raise CaptureError(
            f"forward has a parameter named {TARGET!r}, the name of loss_fn's second argument: rename it"
        )
    only_target = inspect.Signature([inspect.Parameter(TARGET, inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    return flatten_arguments(only_target, "loss_fn", (target,), {})


def _refuse_untraceable_modules(module: nn.Module) -> None:
    for name, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise CaptureError(f"{name or 'the module'} is a TorchScript module: pass the nn.Module it was made from")
        if hasattr(child, "_orig_mod") or child._compiled_call_impl is not None:
            raise CaptureError(f"{name or 'the module'} is compiled already: pass the module that torch.compile got")
        if isinstance(child, nn.LSTM) and child.training and child.dropout and child.num_layers > 1:
            raise CaptureError(
                f"{name or 'the module'} is an LSTM with dropout between its layers, which PyTorch's tracing leaves "
                "out: use one LSTM per layer with nn.Dropout between them"
            )
        tensors = {key: t for table in (child._parameters, child._buffers) for key, t in table.items() if t is not None}
        if any(nn.parameter.is_lazy(tensor) for tensor in tensors.values()):
            raise CaptureError(f"{name or 'the module'} is a lazy module: call it once, so that it has its parameters")
        for key, tensor in tensors.items():
            if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
                raise CaptureError(
                    f"{key} of {name or 'the module'} has a hook on its gradient, which no graph runs: remove it, and "
                    "change the gradients that the backward graph returns instead"
                )
            if hasattr(type(tensor), "__tensor_flatten__") and type(tensor).__name__ != "FakeTensor":
                kind = type(tensor).__name__
                raise CaptureError(f"{key} of {name or 'the module'} is a {kind}: only plain tensors can be parameters")


def _refuse_trained_losses(module: nn.Module, loss_fn: Callable[..., Any] | None) -> None:
    own = {id(parameter) for parameter in module.parameters()}
    inside = inspect.unwrap(loss_fn) if loss_fn is not None else None
    for name, parameter in inside.named_parameters() if isinstance(inside, nn.Module) else ():
        if parameter.requires_grad and id(parameter) not in own:
            raise CaptureError(
                f"loss_fn has a parameter, {name}, that requires grad and is not the module's: make what is trained a "
                "part of the module, and let loss_fn take its output"
            )


def _refuse_lost_gradients(module: nn.Module, tensors: tuple[torch.Tensor, ...], graph: StageGraph) -> None:
    asked = any(t.requires_grad for t in (*tensors, *module.parameters()))
    if asked and not any(port.role == "tangent" for port in graph.inputs):
        raise CaptureError(
            f"gradients are asked for (a parameter or an argument of {type(module).__name__} requires grad), but no "
            "output depends on them differentiably: return a differentiable output, or turn requires_grad off"
        )


@contextlib.contextmanager
def _kept(module: nn.Module) -> Iterator[None]:
    """Parameters, buffers and modes stay as they were.

    AOTAutograd puts its own tensors in their places; in modules registered under several names it leaves some there.
    """
    found: list[dict[str, Any]] = [t for child in module.modules() for t in (child._parameters, child._buffers)]
    tables = [(table, dict(table)) for table in found]
    modes = {child: child.training for child in module.modules()}
    try:
        yield
    finally:
        for table, contents in tables:
            table.clear()
            table.update(contents)
        for child, training in modes.items():
            child.training = training
