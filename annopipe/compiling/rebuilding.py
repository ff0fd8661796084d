"""From a form back to a graph."""

import importlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

__all__ = ["graph_of"]


def graph_of(form: str) -> fx.Graph:
    """The graph that a form describes; run as it is, it is the reference of what is compiled.

    >>> form = '{"inputs":[{"number":"s0"}],"steps":[["_operator:neg",[{"in":0}],{}]],"outputs":[0],"ranges":[[0,9]]}'
    >>> fx.GraphModule({}, graph_of(form))(3)
    (-3,)
    """
    described = json.loads(form)
    graph = fx.Graph()
    inputs = [graph.placeholder(f"in{number}") for number in range(len(described["inputs"]))]
    made: list[fx.Node] = []

    def decoded(value: Any) -> Any:
        if isinstance(value, list):
            return [decoded(each) for each in value]
        if not isinstance(value, dict):
            return value
        ((kind, what),) = value.items()
        if kind == "in":
            return inputs[what]
        if kind == "%":
            return made[what]
        if kind == "float":
            return float(what)
        return torch.device(what) if kind == "device" else getattr(torch, what)

    for name, args, kwargs in described["steps"]:
        arguments = tuple(decoded(each) for each in args)
        made.append(graph.call_function(_target(name), arguments, {k: decoded(v) for k, v in kwargs.items()}))
    graph.output(tuple(made[number] for number in described["outputs"]))
    return graph


def _target(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    if not function.startswith(":"):
        return getattr(importlib.import_module(module), function)
    packet, _, overload = function.removeprefix(":").partition(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, module), packet), overload)
    return found
