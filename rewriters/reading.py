"""One read-only walk over a file: the calls and loops that rules ask for, and what encloses each.

Everything that rules decide on is taken down here; rules never search the tree again, and never look at an edited node.
"""

import dataclasses
import functools
from collections.abc import Mapping

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from rewriters.names import Imports, dotted
from rewriters.source import Source
from rewriters.walking import children

__all__ = ["ClassFacts", "Found", "Reading", "read"]


@dataclasses.dataclass
class ClassFacts:
    """What a class says about itself."""

    name: str
    bases: tuple[str, ...]
    members: set[str] = dataclasses.field(default_factory=set)  # every self.NAME in its body


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A node that a rule may want, with its ancestors from the module inward, and its class."""

    node: cst.CSTNode
    name: str  # of what is called; "" for others
    stack: tuple[cst.CSTNode, ...]
    owner: ClassFacts | None


@dataclasses.dataclass
class Reading:
    """A file as rules see it.

    Args:
        numbered: whether lines are wanted; finding them is half of the time that a file takes.
    """

    source: Source
    numbered: bool = True
    calls: list[Found] = dataclasses.field(default_factory=list)
    loops: list[Found] = dataclasses.field(default_factory=list)
    withs: list[Found] = dataclasses.field(default_factory=list)
    functions: list[Found] = dataclasses.field(default_factory=list)
    imports: Imports = dataclasses.field(default_factory=Imports)
    classes: dict[str, ClassFacts] = dataclasses.field(default_factory=dict)
    names: set[str] = dataclasses.field(default_factory=set)

    @functools.cached_property
    def positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        """Where each node is in the text."""
        # A tree fresh from the parser has no node twice.
        return MetadataWrapper(self.tree, unsafe_skip_copy=True).resolve(PositionProvider)

    @property
    def tree(self) -> cst.Module:
        """The tree that was read."""
        return self.source.tree

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a node; 0 if lines are not wanted."""
        if not self.numbered:
            return 0, 0
        where = self.positions[node]
        return where.start.line, where.end.line

    def members(self, owner: ClassFacts | None) -> set[str]:
        """The members that a class mentions, and those of its bases in this file."""
        found: set[str] = set()
        waiting = [owner]
        seen = set()
        while waiting:
            facts = waiting.pop()
            if facts is not None and facts.name not in seen:
                seen.add(facts.name)
                found |= facts.members
                waiting += [self.classes.get(base) for base in facts.bases]
        return found


def read(source: Source) -> Reading:
    """Read a file.

    >>> from rewriters.source import parse
    >>> [call.name for call in read(parse(b"y = torch.relu(x)")).calls]
    ['torch.relu']
    """
    reading = Reading(source)
    _Walk(reading).walk(source.tree)
    return reading


class _Walk:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._stack: list[cst.CSTNode] = []
        self._owners: list[ClassFacts] = []

    def walk(self, node: cst.CSTNode) -> None:
        """Take down a node and all inside of it."""
        self._stack.append(node)
        self._note(node)
        owners = len(self._owners)
        if isinstance(node, cst.ClassDef):
            facts = ClassFacts(node.name.value, tuple(dotted(base.value) for base in node.bases))
            self._reading.classes.setdefault(facts.name, facts)
            self._owners.append(facts)
        if not isinstance(node, (cst.Import, cst.ImportFrom)):  # what they name is in `imports`
            for child in children(node):
                self.walk(child)
        del self._owners[owners:]
        self._stack.pop()

    def _note(self, node: cst.CSTNode) -> None:
        found = self._reading
        match node:
            case cst.Name():
                found.names.add(node.value)
            case cst.Attribute():
                if self._owners and isinstance(node.value, cst.Name) and node.value.value == "self":
                    self._owners[-1].members.add(node.attr.value)
            case cst.Call():
                if name := dotted(node.func):
                    found.calls.append(self._found(node, name))
            case cst.For():
                found.loops.append(self._found(node))
            case cst.With():
                found.withs.append(self._found(node))
            case cst.Import() | cst.ImportFrom():
                found.imports.add(node)
            case cst.FunctionDef():
                self._bind(node.name)
                found.functions.append(self._found(node))
            case cst.ClassDef() | cst.Param():
                self._bind(node.name)
            case cst.AssignTarget():
                self._bind(node.target)

    def _found(self, node: cst.CSTNode, name: str = "") -> Found:
        return Found(node, name, tuple(self._stack), self._owners[-1] if self._owners else None)

    def _bind(self, name: cst.CSTNode) -> None:
        if isinstance(name, cst.Name):
            self._reading.imports.rebound.add(name.value)
