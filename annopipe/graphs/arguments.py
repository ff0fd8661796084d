"""Arguments of a module's forward by name: which leaves are tensors (ports) and which are guarded constants."""

import dataclasses
import inspect
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from annopipe import pytrees
from annopipe.errors import CaptureError
from annopipe.graphs.snapshots import HoldsTensorError, snapshot

__all__ = ["TARGET", "Arguments", "Guard", "check_guards", "flatten_arguments"]

TARGET = "target"  # the argument of loss_fn that is not the module's output
_PLAIN_TENSORS = ("Tensor", "Parameter", "FakeTensor")


@dataclasses.dataclass(frozen=True)
class Guard:
    """A leaf that was not a tensor when the module was traced: the graphs hold for this value only.

    path: "scale", "options.bias". lane: the lane of a multiplexed graph, or "".
    content, text: what the value was made of then and how it printed, since the object itself may change.
    """

    path: str
    value: Any
    content: Any
    text: str
    lane: str = ""

    @classmethod
    def of(cls, path: str, value: Any) -> "Guard":
        """The guard of a value.

        Raises:
            CaptureError: it holds a tensor or a module, which a graph would freeze.
        """
        try:
            return cls(path, value, snapshot(value), reprlib.repr(value))
        except HoldsTensorError as error:
            raise CaptureError(
                f"{path} is a {type(value).__name__} and holds a tensor or a module ({path}{error.path}), which the "
                "graph would freeze: pass tensors directly or in tuples, lists, dicts and registered dataclasses "
                "(torch.utils._pytree.register_dataclass), and make modules submodules"
            ) from None

    def with_lane(self, lane: str) -> "Guard":
        """The same guard in a multiplexed graph."""
        return dataclasses.replace(self, lane=f"{lane}.{self.lane}" if self.lane else lane)

    def check(self, value: Any) -> None:
        """Check a value of a later call.

        Raises:
            CaptureError: it is not the traced one, so the graph would use a stale constant.
        """
        if not _same(value, self.content):
            now = reprlib.repr(value)
            raise CaptureError(
                f"argument {self.path} was {self.text} when the module was traced and is "
                f"{'changed inside' if now == self.text else now} now; the graph holds for the traced value only: "
                "trace again with this value, or pass a tensor"
            )


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The flattened call of a function: tensors by path, guards, and how to put them together again."""

    paths: tuple[str, ...]  # of the tensors, in call order
    tensors: tuple[torch.Tensor, ...]
    guards: tuple[Guard, ...]
    spec: pytrees.TreeSpec
    order: tuple[str, ...]  # path of every leaf, tensors and constants
    signature: inspect.Signature

    def rebuild(self, tensors: Mapping[str, Any]) -> inspect.BoundArguments:
        """The call with its tensors replaced, constants as they were traced."""
        constants = {guard.path: guard.value for guard in self.guards}
        leaves = [tensors[path] if path in tensors else constants[path] for path in self.order]
        return inspect.BoundArguments(self.signature, pytrees.tree_unflatten(leaves, self.spec))

    def with_own_tensors(self) -> inspect.BoundArguments:
        """The call with a tensor of its own, and no history, for every argument; memory is shared."""
        return self.rebuild(
            {p: t.detach().requires_grad_(t.requires_grad) for p, t in zip(self.paths, self.tensors, strict=True)}
        )

    def without_tensors(self) -> "Arguments":
        """The same without the example tensors, whose memory may then be freed."""
        return dataclasses.replace(self, tensors=())

    def changed(self, call: inspect.BoundArguments, tensors: Mapping[str, Any]) -> list[str]:
        """Paths of the arguments that ``call``, made by ``rebuild(tensors)``, does not hold any more as it did."""
        found = []
        for name, value in call.arguments.items():
            before = [path for path in self.order if path == name or path.startswith(f"{name}.")]
            now = dict(zip(pytrees.leaf_paths(value, name), pytrees.tree_leaves(value), strict=True))
            if list(now) != before or any(now[path] is not tensors[path] for path in before if path in tensors):
                found.append(name)
        return sorted({*found, *(guard.path for guard in self.guards if not _same(guard.value, guard.content))})

    def matched(self, other: "Arguments") -> dict[str, torch.Tensor]:
        """The tensors of another call by path.

        Raises:
            CaptureError: it has another structure, or a constant differs from the traced one.
        """
        if other.order != self.order or other.spec != self.spec:
            differing = sorted(set(other.order) ^ set(self.order)) or [str(other.spec)]
            raise CaptureError(
                "the call has another structure than the traced one "
                f"(it differs at {', '.join(differing)}): trace again"
            )
        tensors = dict(zip(other.paths, other.tensors, strict=True))
        constants = {guard.path: guard.value for guard in other.guards}
        for guard in self.guards:
            guard.check(tensors[guard.path] if guard.path in tensors else constants[guard.path])
        for path in self.paths:
            if path not in tensors:
                raise CaptureError(
                    f"argument {path} was a tensor when the module was traced and is "
                    f"{reprlib.repr(constants[path])} now: trace again"
                )
        return tensors


def flatten_arguments(
    signature: inspect.Signature, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Arguments:
    """Name every leaf of a call, defaults included, after the parameter that gets it: "x", "masks.0", "batch.labels".

    Args:
        signature: of the function that is called.
        what: how messages name the function.

    Raises:
        CaptureError: the call does not fit the signature, or an argument is no plain tensor, or holds tensors where
            they cannot be seen.
    """
    if not isinstance(args, tuple):
        raise CaptureError(
            f"args is a tuple of positional arguments, got {type(args).__name__}; for one argument: (x,)"
        )
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(f"the arguments do not fit {what}{signature}: {error}") from error
    bound.apply_defaults()
    named = dict(bound.arguments)
    leaves, spec = pytrees.tree_flatten(named)
    order = [path for name, value in named.items() for path in pytrees.leaf_paths(value, name)]
    if twice := sorted({path for path in order if order.count(path) > 1}):
        raise CaptureError(f"two arguments are called {', '.join(twice)}: use other dictionary keys")
    tensors = {path: leaf for path, leaf in zip(order, leaves, strict=True) if isinstance(leaf, torch.Tensor)}
    for path, leaf in tensors.items():
        if type(leaf).__name__ not in _PLAIN_TENSORS or leaf.layout != torch.strided or leaf.is_nested:
            kind = type(leaf).__name__ if leaf.layout == torch.strided else f"tensor of layout {leaf.layout}"
            raise CaptureError(
                f"argument {path} is a {kind}: only plain tensors can be stage inputs; "
                "pass its local tensor or its parts, and rebuild it inside forward"
            )
    guards = tuple(Guard.of(p, leaf) for p, leaf in zip(order, leaves, strict=True) if p not in tensors)
    return Arguments(tuple(tensors), tuple(tensors.values()), guards, spec, tuple(order), signature)


def check_guards(guards: Iterable[Guard], constants: Mapping[str, Any]) -> None:
    """Check every guard whose port-like name ("input.k", "F.input.k" in a lane) or path ("k", "F.k") is given.

    Raises:
        CaptureError: a value differs from the traced one.
    """
    for guard in guards:
        prefix = f"{guard.lane}." if guard.lane else ""
        for name in (f"{prefix}input.{guard.path}", f"{prefix}{guard.path}"):
            if name in constants:
                guard.check(constants[name])


def _same(value: Any, content: Any) -> bool:
    try:
        return bool(snapshot(value) == content)
    except (HoldsTensorError, TypeError, ValueError):  # a tensor now, or what does not compare to one truth value
        return False
