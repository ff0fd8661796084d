"""How a file calls annopipe, and adding and removing import statements so that the one undoes the other."""

import dataclasses
import sys
from collections.abc import Callable, Collection, Sequence

import libcst as cst

from rewriters.lines import Line, comment_line, with_lines
from rewriters.names import dotted
from rewriters.reading import Reading

__all__ = ["Binding", "add_import", "bind", "is_import_of", "without_imports"]


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """What to write for a name of a module, and the import that this needs.

    Args:
        names: for each call ("comm") what to write ("annopipe.comm").
        statement: the import to add, or "".
    """

    names: dict[str, str]
    statement: str = ""


def bind(
    reading: Reading, module: str, calls: Collection[str], style: str = "module", *, by_parent: bool = False
) -> Binding:
    """How to write ``calls`` of ``module`` in a file: as it does already, or by an import to add.

    Args:
        style: of an import to add, "module" (``import annopipe``) or "names" (``from annopipe import region``).
        by_parent: whoever imports the outermost package has the module, too.
    """
    bound = {name: whole for name, whole in _top_level(reading).items() if reading.imports.is_certain(name)}
    for name, whole in bound.items():
        if whole == module:
            return Binding({call: f"{name}.{call}" for call in calls})
    head = module.partition(".")[0]
    of_names = {whole.rpartition(".")[2]: name for name, whole in bound.items() if whole.rpartition(".")[0] == module}
    if calls and of_names.keys() >= set(calls):
        return Binding({call: of_names[call] for call in calls})
    if by_parent and bound.get(head) == head:
        return Binding({call: f"{module}.{call}" for call in calls})
    if style == "names" and reading.names.isdisjoint(calls):
        return Binding({call: call for call in calls}, f"from {module} import {', '.join(sorted(calls))}")
    alias = module
    while _is_taken(alias.partition(".")[0], reading, head):
        alias += "_"
    statement = f"import {module}" if alias == module else f"import {module} as {alias}"
    return Binding({call: f"{alias}.{call}" for call in calls}, statement)


def _is_taken(name: str, reading: Reading, meaning: str) -> bool:
    if reading.imports.names.get(name) == meaning:
        return not reading.imports.is_certain(name)
    return name in reading.names or name in reading.imports.names


def _top_level(reading: Reading) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in reading.tree.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar):
                for alias in small.names:
                    name = dotted(alias.asname.name if alias.asname else alias.name).partition(".")[0]
                    found[name] = reading.imports.names.get(name, "")
    return found


def add_import(tree: cst.Module, statement: str) -> cst.Module:
    r"""The module with an import, among those of other packages where isort would have it, else behind the others.

    >>> print(add_import(cst.parse_module("import os\n\nimport torch\n"), "import annopipe").code)
    import os
    <BLANKLINE>
    import annopipe
    import torch
    <BLANKLINE>
    """
    line = cst.ensure_type(cst.parse_statement(statement, config=tree.config_for_parsing), cst.SimpleStatementLine)
    body = list(tree.body)
    index, takes_lines = _place(body, statement)
    if takes_lines:
        follower = cst.ensure_type(body[index], cst.SimpleStatementLine)
        line = line.with_changes(leading_lines=follower.leading_lines)
        body[index] = follower.with_changes(leading_lines=())
    body.insert(index, line)
    return tree.with_changes(body=body)


def _place(body: Sequence[cst.CSTNode], statement: str) -> tuple[int, bool]:
    """Where the import goes, and whether it takes over the lines above the statement that is there."""
    last = 0
    for index, node in enumerate(body):
        small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and node.body else None
        if not isinstance(small, (cst.Import, cst.ImportFrom)):
            if (
                index == 0
                and isinstance(small, cst.Expr)
                and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
            ):
                last = 1
                continue
            break
        module = _module(small)
        if module.partition(".")[0] in sys.stdlib_module_names:
            last = index + 1
            continue
        if isinstance(small, cst.Import) and module < statement.split()[1]:
            last = index + 1
            continue
        return index, index > 0
    return last, False


def _module(small: cst.Import | cst.ImportFrom) -> str:
    if isinstance(small, cst.Import):
        return dotted(small.names[0].name)
    return "." * len(small.relative) + (dotted(small.module) if small.module else "")


def is_import_of(alias: cst.ImportAlias, base: str, module: str) -> bool:
    """Whether part of an import statement imports ``module``, or a name of it; ``base`` is what follows ``from``."""
    whole = f"{base}.{dotted(alias.name)}" if base else dotted(alias.name)
    return whole == module or whole.startswith(f"{module}.")


def without_imports(tree: cst.Module, unwanted: Callable[[str, cst.ImportAlias, str], bool]) -> cst.Module:
    """The module without the top-level imports for which ``unwanted(bound name, alias, base)``; comments stay."""
    body: list[Line] = []
    waiting: tuple[cst.EmptyLine, ...] = ()
    header = tuple(tree.header)
    for node in tree.body:
        kept = _without(node, unwanted)
        if kept is not None:
            body.append(with_lines(kept, waiting))
            waiting = ()
        elif isinstance(node, cst.SimpleStatementLine):
            waiting = (*waiting, *node.leading_lines, *comment_line(node.trailing_whitespace))
    return tree.with_changes(body=body, header=header, footer=(*waiting, *tree.footer))


def _without(node: Line, unwanted: Callable[[str, cst.ImportAlias, str], bool]) -> Line | None:
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return node
    small = node.body[0]
    if not isinstance(small, (cst.Import, cst.ImportFrom)) or isinstance(small.names, cst.ImportStar):
        return node
    base = _module(small) if isinstance(small, cst.ImportFrom) else ""
    kept = []
    for alias in small.names:
        name = dotted(alias.asname.name if alias.asname else alias.name)
        if not unwanted(name, alias, base):
            kept.append(alias)
    if len(kept) == len(small.names):
        return node
    if not kept:
        return None
    kept[-1] = kept[-1].with_changes(comma=small.names[-1].comma)
    return node.with_changes(body=[small.with_changes(names=kept)])
