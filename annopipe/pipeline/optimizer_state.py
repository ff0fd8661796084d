"""``begun``: what an optimizer will keep of parameters that it has not seen a gradient of yet, for a checkpoint.

An optimizer makes the state of a parameter in the first step that has a gradient of it. A checkpoint has to name all of
it earlier: to be filled before the first step, and to be read by ranks on which other parameters have state already.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["begun"]


@contextlib.contextmanager
def begun(optimizer: torch.optim.Optimizer) -> Iterator[list[nn.Parameter]]:
    """Inside, every trained parameter has state, and none has a gradient.

    What is made is made by a step with gradients, learning rate and weight decay of zero, and counts as no step.
    Afterwards parameters, their gradients, and the optimizer are as they were; the yielded list says whose state is
    taken away again.

    >>> parameter = nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.Adam([parameter], weight_decay=0.1)
    >>> with begun(optimizer):
    ...     {name: float(value.sum()) for name, value in optimizer.state[parameter].items()}
    {'step': 0.0, 'exp_avg': 0.0, 'exp_avg_sq': 0.0}
    >>> dict(optimizer.state)
    {}
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    fresh = [p for p in parameters if p.requires_grad and not optimizer.state.get(p)]
    try:
        for parameter in parameters:
            parameter.grad = None
        if fresh:
            _step_of_zeros(optimizer, fresh)
        yield fresh
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for parameter in fresh:
            optimizer.state.pop(parameter, None)


def _step_of_zeros(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    groups = optimizer.param_groups
    before: list[dict[str, Any]] = [
        {name: group[name] for name in ("lr", "weight_decay") if name in group} for group in groups
    ]
    try:
        for group, known in zip(groups, before, strict=True):
            for name, value in known.items():
                group[name] = torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0.0
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    finally:
        for group, known in zip(groups, before, strict=True):
            group.update(known)
        for parameter in parameters:
            parameter.grad = None
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        if "step" in state:
            state["step"] = torch.zeros_like(state["step"]) if isinstance(state["step"], torch.Tensor) else 0
