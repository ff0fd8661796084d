"""Arguments of a module's forward by name: which leaves are tensors (ports) and which are guarded constants."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from annopipe.errors import CaptureError

__all__ = ["TARGET", "Arguments", "Guard", "check_guards", "flatten_arguments", "leaf_paths"]

TARGET = "target"  # the argument of loss_fn that is not the module's output


@dataclasses.dataclass(frozen=True)
class Guard:
    """A leaf that was not a tensor when the module was traced: the graphs hold for this value only."""

    path: str
    value: Any

    def check(self, value: Any) -> None:
        """Raises CaptureError when ``value`` is not the traced one: the graph would use a stale constant."""
        if value is self.value or (type(value) is type(self.value) and _equal(value, self.value)):
            return
        raise CaptureError(
            f"argument {self.path} was {self.value!r} when the module was traced and is {value!r} now; "
            "the graph holds for the traced value only: trace again with this value, or pass a tensor"
        )


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The flattened call of a function: tensors by path, guards, and how to put them together again."""

    paths: tuple[str, ...]  # of the tensors, in call order
    tensors: tuple[torch.Tensor, ...]
    guards: tuple[Guard, ...]
    spec: pytree.TreeSpec
    order: tuple[str, ...]  # path of every leaf, tensors and constants
    signature: inspect.Signature

    def rebuild(self, tensors: Mapping[str, Any]) -> inspect.BoundArguments:
        """The call with its tensors replaced, constants as they were traced."""
        constants = {guard.path: guard.value for guard in self.guards}
        leaves = [tensors[path] if path in tensors else constants[path] for path in self.order]
        return inspect.BoundArguments(self.signature, pytree.tree_unflatten(leaves, self.spec))

    def matched(self, other: "Arguments") -> dict[str, torch.Tensor]:
        """The tensors of another call by path.

        Raises:
            CaptureError: it has another structure, or a constant differs from the traced one.
        """
        if other.order != self.order or other.spec != self.spec:
            differing = sorted(set(other.order) ^ set(self.order)) or [str(other.spec)]
            raise CaptureError(
                f"the call has another structure than the traced one (it differs at {', '.join(differing)}): trace again"
            )
        tensors = dict(zip(other.paths, other.tensors, strict=True))
        constants = {guard.path: guard.value for guard in other.guards}
        for guard in self.guards:
            guard.check(tensors.get(guard.path, constants.get(guard.path)))
        for path in self.paths:
            if path not in tensors:
                raise CaptureError(f"argument {path} was a tensor when the module was traced and is {constants[path]!r} now")
        return tensors


def flatten_arguments(signature: inspect.Signature, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Name every leaf of a call after the parameter that receives it: "x", "masks.0", "batch.labels"; defaults included.

    Args:
        signature: of the function that is called.
        what: how messages name the function.

    Raises:
        CaptureError: the call does not fit the signature, or an argument is a tensor subclass.
    """
    if not isinstance(args, tuple):
        raise CaptureError(f"args is a tuple of positional arguments, got {type(args).__name__}; for one argument: (x,)")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(f"the arguments do not fit {what}{signature}: {error}") from error
    bound.apply_defaults()
    named = dict(bound.arguments)
    leaves, spec = pytree.tree_flatten(named)
    order = [path for name, value in named.items() for path in leaf_paths(value, name)]
    tensors = {path: leaf for path, leaf in zip(order, leaves, strict=True) if isinstance(leaf, torch.Tensor)}
    for path, leaf in tensors.items():
        if type(leaf).__name__ not in ("Tensor", "Parameter", "FakeTensor"):
            raise CaptureError(
                f"argument {path} is a {type(leaf).__name__}: only plain tensors can be stage inputs; "
                "pass its local tensor and rebuild it inside forward"
            )
    guards = tuple(Guard(p, leaf) for p, leaf in zip(order, leaves, strict=True) if p not in tensors)
    return Arguments(tuple(tensors), tuple(tensors.values()), guards, spec, tuple(order), signature)


def check_guards(guards: tuple[Guard, ...], constants: Mapping[str, Any]) -> None:
    """Check every guard whose port name ("input.k") or path ("k") is in ``constants``.

    Raises:
        CaptureError: a value differs from the traced one.
    """
    for guard in guards:
        for name in (f"input.{guard.path}", guard.path):
            if name in constants:
                guard.check(constants[name])


def leaf_paths(tree: Any, name: str) -> list[str]:
    """A dotted path for every leaf of a pytree, in flattening order: "masks.0", "state.hidden"; ``name`` for a leaf."""
    keyed, _ = pytree.tree_flatten_with_path(tree)
    return [".".join([name, *(_key_text(key) for key in path)] if name else [_key_text(k) for k in path]) for path, _ in keyed]


def _key_text(key: Any) -> str:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except (TypeError, ValueError):  # arrays and others that do not compare to one truth value
        return False
