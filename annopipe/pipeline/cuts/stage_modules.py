"""Make a module of one stage's part of a forward, with the model's own parameters under their own names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import fx, nn

from annopipe.annotate import LANE_KEY, STREAM_KEY, comm, nano_batch, region
from annopipe.graphs.meta import custom_tags, tag_kind, tag_region

__all__ = ["add_rest", "build_stage", "tagged_call", "tagged_method"]


def build_stage(
    model: nn.Module,
    graph: fx.Graph,
    stage_of: Mapping[fx.Node, int],
    stage: int,
    crossing: Sequence[Sequence[fx.Node]],
    constants: Mapping[str, torch.Tensor],
) -> fx.GraphModule:
    """One stage.

    Args:
        model, graph: the model, and its forward as it was read.
        stage_of: the stage of every node.
        stage: which one to make.
        crossing: for every cut the values that cross it.
        constants: tensors of the graph that the model does not have.
    """
    own = fx.Graph()
    functions: dict[str, Callable[..., Any]] = {}
    copies: dict[fx.Node, fx.Node] = {}
    for value in crossing[stage - 1] if stage else ():
        # Another name than the argument's own: keyword arguments of a step go to stages by name.
        copies[value] = own.placeholder(f"given_{value.name}")
    for node in graph.nodes:
        if node.op == "get_attr":
            if any(stage_of.get(user) == stage for user in node.users):
                copies[node] = own.node_copy(node)
        elif node.op != "output" and stage_of[node] == stage:
            copies[node] = _with_tags(own, own.node_copy(node, copies.__getitem__), node, functions)
    if stage < len(crossing):
        own.output(tuple(copies[value] for value in crossing[stage]))
    else:
        end = next(node for node in graph.nodes if node.op == "output")
        own.node_copy(end, copies.__getitem__)
    used = {str(node.target): node for node in own.nodes if node.op in ("get_attr", "call_module")}
    kept = {**constants, **functions}
    found = fx.GraphModule({name: _attribute(model, kept, name) for name in used}, own, f"Stage{stage}")
    _keep_buffers_as_they_are(model, found)
    found.training = model.training
    return found


def add_rest(model: nn.Module, stages: Sequence[nn.Module]) -> None:
    """Give parameters and buffers that the forward does not use to the first stage, so that no name is lost."""
    there = {name for stage in stages for name in _tensors(stage)}
    for name, tensor in _tensors(model).items():
        if name not in there:
            path, _, key = name.rpartition(".")
            parent = stages[0]
            for part in path.split(".") if path else ():
                if not hasattr(parent, part):
                    parent.add_module(part, nn.Module())
                parent = getattr(parent, part)
            if isinstance(tensor, nn.Parameter):
                parent.register_parameter(key, tensor)
            else:
                parent.register_buffer(key, tensor, persistent=name in model.state_dict())


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _attribute(model: nn.Module, others: Mapping[str, Any], name: str) -> Any:
    if name in others:
        return others[name]
    parent, _, key = name.rpartition(".")
    return getattr(model.get_submodule(parent), key)


def _keep_buffers_as_they_are(model: nn.Module, stage: fx.GraphModule) -> None:
    """FX makes persistent buffers of all tensors that the graph itself reads."""
    kept = model.state_dict(keep_vars=True)
    for name, buffer in list(stage.named_buffers(remove_duplicate=False)):
        if name not in kept and name in stage.state_dict():
            parent, _, key = name.rpartition(".")
            stage.get_submodule(parent).register_buffer(key, buffer, persistent=False)


def _with_tags(graph: fx.Graph, node: fx.Node, original: fx.Node, functions: dict[str, Callable[..., Any]]) -> fx.Node:
    """The node, run under the tags that were open around it; a call of a module or function that opens them.

    Functions are added to those that the stage has as attributes: FX cannot print one as an argument.
    """
    custom = custom_tags(original)
    tags = tag_kind(original), tag_region(original), custom.get(LANE_KEY), custom.get(STREAM_KEY)
    if tags == ("", "", None, None) or node.op not in ("call_module", "call_function", "call_method"):
        return node
    called: Any = node.target
    with graph.inserting_before(node):
        if node.op == "call_module":
            called = graph.get_attr(str(node.target))
        elif node.op == "call_function":
            name = f"_tagged_function{len(functions)}"
            functions[name] = called
            called = graph.get_attr(name)
        function = tagged_method if node.op == "call_method" else tagged_call
        found = graph.call_function(function, (tags, called, *node.args), dict(node.kwargs))
    graph.erase_node(node)
    return found


Tags = tuple[str, str, int | None, str | None]


def tagged_call(tags: Tags, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function under the tags that its call had in the model's forward."""
    with _open(tags):
        return function(*args, **kwargs)


def tagged_method(tags: Tags, name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    """The same for a method."""
    with _open(tags):
        return getattr(owner, name)(*args, **kwargs)


@contextmanager
def _open(tags: Tags) -> Iterator[None]:
    kind, path, lane, stream = tags
    opened = nullcontext() if not path else (comm(path) if kind == "comm" else region(path, stream=stream))
    with opened, nullcontext() if lane is None else nano_batch(lane):
        yield
