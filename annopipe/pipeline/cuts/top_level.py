"""Read the forward of a model that is to be cut, down to the modules at which it is cut, as an FX graph.

The graph has one node per call of a submodule; those that contain a module at which the model is cut are looked into.
Tags of ``annopipe.annotate`` are kept on the nodes. What such a graph cannot express is refused: branches on values,
random numbers, changes of attributes, checkpoints, and contexts such as autocast around calls.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx, nn

from annopipe.errors import PipelineError
from annopipe.graphs.checkpointing import CheckpointError, checkpoints_refused
from annopipe.graphs.failures import user_line
from annopipe.graphs.random_state import untouched_random_state

__all__ = ["read_forward"]


def read_forward(
    model: nn.Module, names: Sequence[str], inputs: Sequence[str]
) -> tuple[fx.Graph, dict[str, torch.Tensor]]:
    """The graph, and the tensors in it that are neither parameters nor buffers, by the name under which it has them.

    Args:
        names: the modules that have to be calls.
        inputs: parameters with defaults that are to stay arguments.

    Raises PipelineError for what cannot be read.
    """
    tracer = _Reader(names, _arguments(model, inputs))
    parts = [(name, model.get_submodule(name)) for name in sorted({"", *tracer.open_modules})]
    before = {name: dict(vars(part)) for name, part in parts}
    try:
        with _explained(model), untouched_random_state(), fx_traceback.preserve_node_meta(), checkpoints_refused():
            state = torch.get_rng_state()
            graph = tracer.trace(model)
            drew = not torch.equal(state, torch.get_rng_state())
    finally:
        constants = _taken_back(parts, before)
    if drew:
        raise PipelineError(
            f"cannot cut {type(model).__name__}: its forward draws random numbers between the calls of its submodules, "
            "which would be the same ones in every step: put that into a submodule"
        )
    return graph, constants


class _Reader(fx.Tracer):
    """Looks into modules that contain a cut, and into no other."""

    proxy_buffer_attributes = True

    def __init__(self, names: Sequence[str], arguments: Sequence[inspect.Parameter]) -> None:
        super().__init__()
        self._arguments = arguments
        self.open_modules = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
        self._contexts = _contexts()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002  FX's signature
        """Whether the module is one call."""
        return module_qualified_name not in self.open_modules

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,  # noqa: ARG002  FX's signature
        concrete_args: Any = None,  # noqa: ARG002
    ) -> tuple[Callable[..., Any], list[Any]]:
        """What is called: forward with those arguments, so that the others have their defaults."""
        given = {
            parameter.name: self.create_proxy(
                "placeholder",
                parameter.name,
                () if parameter.default is parameter.empty else (parameter.default,),
                {},
            )
            for parameter in self._arguments
        }
        first = [given.pop(p.name) for p in self._arguments if p.kind is p.POSITIONAL_ONLY]
        return lambda root: root_fn(root, *first, **given), [self.root]

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A node, if what holds around it is what holds around the whole."""
        if _contexts() != self._contexts:
            raise PipelineError(
                "autocast, no_grad or the like is entered between the calls of the submodules, and a stage could not "
                "enter it again: put it inside a submodule, or around the step"
            )
        return super().create_node(*args, **kwargs)


def _arguments(model: nn.Module, inputs: Sequence[str]) -> list[inspect.Parameter]:
    """The parameters of forward that stages are called with."""
    parameters = inspect.signature(model.forward).parameters
    if unknown := sorted(set(inputs) - parameters.keys()):
        raise PipelineError(f"the forward of {type(model).__name__} has no parameter {', '.join(unknown)}")
    found = [
        p
        for name, p in parameters.items()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and (p.default is p.empty or name in inputs)
    ]
    if not found:
        raise PipelineError(
            f"every parameter of the forward of {type(model).__name__} has a default: say which ones stages are called "
            f"with, such as inputs=[{next(iter(parameters), '')!r}]"
        )
    return found


def _contexts() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


@contextmanager
def _explained(model: nn.Module) -> Iterator[None]:
    """What goes wrong names the line of the forward."""
    try:
        yield
    except PipelineError as error:
        raise PipelineError(f"cannot cut {type(model).__name__}: {error}{user_line(error.__traceback__)}") from error
    except CheckpointError as error:
        raise PipelineError(
            f"cannot cut {type(model).__name__}: it calls a submodule under torch.utils.checkpoint, which a stage "
            f"would lose; call it inside the submodule{user_line(error.__traceback__)}"
        ) from error
    except (fx.proxy.TraceError, TypeError, ValueError, AttributeError, RuntimeError, KeyError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PipelineError(
            f"cannot cut {type(model).__name__}: what its forward does between the calls of its submodules cannot be "
            f"read without values ({reason}); put it into a submodule, or write the stages by hand"
            f"{user_line(error.__traceback__)}"
        ) from error


def _taken_back(
    parts: Sequence[tuple[str, nn.Module]], before: Mapping[str, Mapping[str, Any]]
) -> dict[str, torch.Tensor]:
    """Undo what reading did to the modules; the tensors that FX put on the model as constants.

    Raises PipelineError for an attribute that forward itself changes.
    """
    constants: dict[str, torch.Tensor] = {}
    changed = []
    for name, part in parts:
        for key in [key for key in vars(part) if key not in before[name]]:
            value = vars(part)[key]
            if key.startswith("_tensor_constant"):
                constants[key] = value
                delattr(part, key)
            else:
                changed.append(f"{name}.{key}".lstrip("."))
                delattr(part, key)
        for key, value in before[name].items():
            if vars(part).get(key) is not value:
                changed.append(f"{name}.{key}".lstrip("."))
                vars(part)[key] = value
    if changed:
        raise PipelineError(
            f"cannot cut the model: its forward changes {', '.join(changed)}; put that into a submodule"
        )
    for value in constants.values():
        if value.requires_grad:
            raise PipelineError(
                "cannot cut the model: its forward computes with a tensor that requires a gradient and is no parameter"
            )
    return constants
