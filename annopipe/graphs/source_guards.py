"""Guards of Python values by where they come from: attributes of the module, globals, closure variables, defaults.

A capture that reads a Python value turns it into a constant of the graph. Here each such value is kept with its source
(an expression such as ``L['self'].n`` or ``G['__import_layers'].K``) and with what was read of it: the value itself,
only its type, only its length. Checking evaluates the expression again, for the module at hand.
"""

import dataclasses
import functools
import inspect
import re
import types
from collections.abc import Mapping
from typing import Any

from annopipe.errors import CaptureError
from annopipe.graphs.aspects import ASPECTS

__all__ = ["SourceGuard", "SourceGuards", "evaluated", "user_name"]

Scope = dict[str, Any]  # names that sources use; evaluation adds the builtins
_GONE = "is gone"


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
        found = ASPECTS[aspect]
        name = user_name(f"{source}.{key}" if aspect == "own" else source, scope)
        return cls(source, name, aspect, key, found.read(value, key), found.told(value, key))

    def check(self, scope: Scope) -> None:
        """Check what the source is now.

        Raises:
            CaptureError: the graph would use a stale constant.
        """
        try:
            value = evaluated(self.source, scope)
            found = ASPECTS[self.aspect]
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
    if pair := re.fullmatch(r"\((.+)\) is \((.+)\)", source):
        return " is ".join(user_name(place, scope) for place in pair.groups())
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
