"""Guards of Python values by where they come from: attributes of the module, globals, closure variables, defaults.

A capture that reads a Python value turns it into a constant of the graph. Here each such value is kept with its source
(an expression such as ``L['self'].n`` or ``G['__import_layers'].K``) and with what was read of it: the value itself,
only its type, only its length. Checking evaluates the expression again, for the module at hand.
"""

import dataclasses
import functools
import inspect
import re
import reprlib
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from annopipe.errors import CaptureError
from annopipe.graphs.snapshots import HoldsTensorError, snapshot

__all__ = ["SourceGuard", "SourceGuards", "evaluated", "user_name"]

Scope = dict[str, Any]  # names that sources use; evaluation adds the builtins
_GONE = "is gone"


@dataclasses.dataclass(frozen=True)
class Aspect:
    """What a capture read of a value: ``read(value, key)`` for comparing, ``told(value, key)`` for the message."""

    read: Callable[[Any, Any], Any]
    told: Callable[[Any, Any], str]


def _code(value: Any, _: Any) -> Any:
    function = getattr(value, "__func__", value)
    return "code", getattr(function, "__code__", function)


def _value(value: Any, _: Any) -> Any:
    if isinstance(value, (torch.Tensor, nn.Module)):
        return type(value)
    try:
        return snapshot(value)
    except HoldsTensorError:
        return type(value)


def _lookup(value: Any, key: Any) -> Any:
    """Whether an attribute is the object's own; else the method of its class, which may be replaced there."""
    found = getattr(type(value), key, None)
    return key in vars(value), _code(found, None) if callable(found) else None


def _tensor(value: Any, _: Any) -> Any:
    return _SameTensor(value) if isinstance(value, torch.Tensor) else type(value)


def _like(value: Any, _: Any) -> Any:
    return (value.dtype, value.shape, value.requires_grad) if isinstance(value, torch.Tensor) else type(value)


def _properties(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return reprlib.repr(value)
    grad = "requires grad" if value.requires_grad else "requires no grad"
    return f"of {value.dtype}, shape {tuple(value.shape)}, and {grad}"


def _repr(value: Any, _: Any) -> str:
    return value.__qualname__ if isinstance(value, (type, types.FunctionType)) else reprlib.repr(value)


_ASPECTS: Mapping[str, Aspect] = {
    "value": Aspect(_value, _repr),
    "code": Aspect(_code, _repr),
    "type": Aspect(lambda v, _: type(v), lambda v, _: f"of type {type(v).__qualname__}"),
    "length": Aspect(lambda v, _: len(v), lambda v, _: f"of length {len(v)}"),
    "keys": Aspect(lambda v, _: [_value(k, None) for k in v], lambda v, _: f"with the keys {reprlib.repr(list(v))}"),
    "holds": Aspect(lambda v, key: key in v, lambda v, k: f"{'with' if k in v else 'without'} the key {k!r}"),
    "has": Aspect(hasattr, lambda v, k: f"{'with' if hasattr(v, k) else 'without'} the attribute {k}"),
    "own": Aspect(_lookup, lambda v, k: "the object's own" if k in vars(v) else "its class's"),
    "none": Aspect(lambda v, _: v is None, _repr),
    "like": Aspect(_like, lambda v, _: _properties(v)),
    "tensor": Aspect(_tensor, lambda v, _: f"{'a tensor' if isinstance(v, torch.Tensor) else reprlib.repr(v)}"),
}


class _SameTensor:
    """Compares equal to the same tensor, and to another one that holds the same."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _SameTensor):
            return False
        a, b = self._tensor, other._tensor
        if a is b:
            return True
        without_data = any(tensor.is_meta or hasattr(tensor, "fake_mode") for tensor in (a, b))
        if without_data or (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return False
        return torch.equal(a, b)

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class SourceGuard:
    """One value that a graph holds for.

    source: an expression of ``L`` (the arguments of the capture) and ``G`` (its globals).  name: as a user writes it.
    aspect, key: what was read of it.  content, text: what it was, for comparing and for messages.
    """

    source: str
    name: str
    aspect: str
    key: Any
    content: Any
    text: str

    @classmethod
    def of(cls, source: str, aspect: str, key: Any, scope: Scope) -> "SourceGuard":
        """The guard of what ``source`` is now."""
        value = evaluated(source, scope)
        found = _ASPECTS[aspect]
        name = user_name(f"{source}.{key}" if aspect == "own" else source, scope)
        return cls(source, name, aspect, key, found.read(value, key), found.told(value, key))

    def check(self, scope: Scope) -> None:
        """Check what the source is now.

        Raises:
            CaptureError: the graph would use a stale constant.
        """
        try:
            value = evaluated(self.source, scope)
            found = _ASPECTS[self.aspect]
            same, now = found.read(value, self.key) == self.content, found.told(value, self.key)
        except (AttributeError, LookupError, TypeError, NameError):  # there is no such thing any more
            same, now = False, _GONE
        if not same:
            told = (
                now if now == _GONE else "changed inside, or another one, now" if now == self.text else f"is {now} now"
            )
            raise CaptureError(
                f"{self.name} was {self.text} when the module was traced and {told}; the graphs hold for the traced "
                "value only: trace again"
            )


@dataclasses.dataclass(frozen=True)
class SourceGuards:
    """All values that the graphs of a stage hold for; none of a stage that was traced directly.

    scope: names that the expressions use, ``G`` among them.  arguments: those of the capture that stay (the loss).
    """

    guards: tuple[SourceGuard, ...] = ()
    scope: Scope = dataclasses.field(default_factory=dict)
    arguments: Scope = dataclasses.field(default_factory=dict)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Check every guard whose source can be had: globals, and what can be reached from the arguments.

        Args:
            arguments: of the capture, by name.

        Raises:
            CaptureError: a value has changed since.
        """
        known = {**self.arguments, **arguments}
        scope = {**self.scope, "L": known}
        for guard, needed in self._needs:
            if needed <= known.keys():
                guard.check(scope)

    @functools.cached_property
    def _needs(self) -> list[tuple[SourceGuard, frozenset[str]]]:
        return [(guard, frozenset(re.findall(r"L\['(\w+)'\]", guard.source))) for guard in self.guards]


def user_name(source: str, scope: Scope) -> str:
    """A source as its user would write it.

    >>> user_name("L['self']._modules['layers']._modules['0'].n", {})
    'self.layers[0].n'
    >>> user_name("G['__import_my_dot_layers'].K", {})
    'global K of my.layers'
    """
    if function := re.match(r"(.*)\.__closure__\[(\d+)\](?:\.cell_contents)?(.*?)$", source):
        before, expression = _innermost(function[1])
        owner = evaluated(expression, scope)
        variable = owner.__code__.co_freevars[int(function[2])]
        return f"closure variable {_tidy(before + variable + function[3])} of {owner.__name__}"
    if (function := re.match(r"(.*)\.__defaults__\[(\d+)\](.*)$", source)) and not _innermost(function[1])[0]:
        owner = evaluated(function[1], scope)
        code = owner.__code__
        names = code.co_varnames[: code.co_argcount][-len(owner.__defaults__) :]
        return f"the default of {_tidy(names[int(function[2])] + function[3])} of {owner.__name__}"
    source = _tidy(source)
    if (found := re.match(r"args\[(\d+)\](.*)$", source)) and "L" in scope:
        parameters = list(inspect.signature(scope["L"]["self"].forward).parameters)
        return f"argument {parameters[min(int(found[1]), len(parameters) - 1)]}{found[2]}"
    if found := re.match(r"G\['__import_(\w+)'\]\.(.*)$", source):
        return f"global {found[2]} of {found[1].replace('_dot_', '.')}"
    found = re.match(r"G\['\w+'\]\['(\w+)'\](.*)$", source) or re.match(r"G\['(\w+)'\](.*)$", source)
    return f"global {found[1]}{found[2]}" if found else source


def _innermost(text: str) -> tuple[str, str]:
    """What stands before the last bracket that is not closed, itself included, and what stands behind it."""
    closed = 0
    for position in range(len(text) - 1, -1, -1):
        closed += (text[position] in ")]") - (text[position] in "([")
        if closed < 0:
            return text[: position + 1], text[position + 1 :]
    return "", text


def _tidy(source: str) -> str:
    """Without what only the machine writes: tables of modules and parameters, dictionaries of classes."""
    before = ""
    while before != source:
        before = source
        source = re.sub(r"\._(?:modules|parameters|buffers)\['(\d+)'\]", r"[\1]", source)
        source = re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", source)
        source = re.sub(r"L\['(\w+)'\]", r"\1", source)
        source = re.sub(r"(?:dict\()?type\(([^()]*)\)(?:\.__mro__\[\d+\])?\.__dict__\)?\['(\w+)'\]", r"\1.\2", source)
        source = re.sub(r"\.__dict__\['(\w+)'\]", r".\1", source)
    return source.replace(".__class__", "")


@functools.cache
def _compiled(source: str) -> types.CodeType:
    return compile(source, "<source of a guard>", "eval")


def evaluated(source: str, scope: Scope) -> Any:
    """What a source is now."""
    return eval(_compiled(source), scope)  # noqa: S307 (Dynamo's expressions, as it evaluates them)
