"""Names of expressions as one text, and what names a file imports, so that anchors can be compared with them."""

import dataclasses
from collections.abc import Iterator

import libcst as cst

__all__ = ["Imports", "dotted", "string_value", "target_names"]


def dotted(node: cst.BaseExpression) -> str:
    """The name of an expression: ``self.attn[0]`` is "self.attn[]", ``f(self.x)`` is "f(self.x)", others are "".

    >>> dotted(cst.parse_expression("self.experts[i].dispatcher"))
    'self.experts[].dispatcher'
    """
    match node:
        case cst.Name():
            return node.value
        case cst.Attribute():
            owner = dotted(node.value)
            return f"{owner}.{node.attr.value}" if owner else ""
        case cst.Subscript():
            owner = dotted(node.value)
            return f"{owner}[]" if owner else ""
        case cst.Call():
            function = dotted(node.func)
            return f"{function}({', '.join(dotted(a.value) for a in node.args)})" if function else ""
        case _:
            return ""


def string_value(node: cst.BaseExpression) -> str | None:
    """The text of a plain string literal, else None."""
    if isinstance(node, cst.SimpleString) and "b" not in node.prefix.lower():
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def target_names(node: cst.CSTNode) -> Iterator[str]:
    """The names that an assignment's target binds: "x", "h" of ``x, (h, _)``, and dotted ones."""
    if isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from target_names(element.value)
    elif isinstance(node, cst.StarredElement):
        yield from target_names(node.value)
    elif isinstance(node, (cst.Name, cst.Attribute)) and (name := dotted(node)):
        yield name


@dataclasses.dataclass
class Imports:
    """What a file's names were imported as, anywhere in the file; names that are also bound otherwise.

    >>> imports = Imports()
    >>> imports.add(cst.parse_statement("from torch.fx import traceback as tb").body[0])
    >>> imports.qualified("tb.annotate")
    'torch.fx.traceback.annotate'
    """

    names: dict[str, str] = dataclasses.field(default_factory=dict)
    rebound: set[str] = dataclasses.field(default_factory=set)

    def add(self, node: cst.Import | cst.ImportFrom) -> None:
        """Take up an import statement."""
        if isinstance(node.names, cst.ImportStar):
            return
        base = ""
        if isinstance(node, cst.ImportFrom):
            base = "." * len(node.relative) + (dotted(node.module) if node.module else "")
        for alias in node.names:
            name = dotted(alias.name)
            whole = f"{base}.{name}" if base.strip(".") else base + name
            if alias.asname is not None:
                self._bind(dotted(alias.asname.name), whole)
            elif isinstance(node, cst.ImportFrom):
                self._bind(name, whole)
            else:
                self._bind(name.partition(".")[0], name.partition(".")[0])

    def _bind(self, name: str, whole: str) -> None:
        if self.names.setdefault(name, whole) != whole:
            self.rebound.add(name)

    def qualified(self, name: str) -> str:
        """The full name of what ``name`` means, or ``name`` itself."""
        head, dot, rest = name.partition(".")
        return self.names.get(head, head) + dot + rest

    def is_certain(self, name: str) -> bool:
        """Whether the first part of ``name`` is bound by imports alone."""
        return name.partition(".")[0] not in self.rebound
