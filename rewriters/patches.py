"""Patch lists: statements that annotate methods of other classes, and where those classes are."""

import ast
import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

import libcst as cst

from annopipe.errors import RewriteError
from rewriters.annotations import Annotation, read_annotation
from rewriters.names import dotted
from rewriters.reading import Reading, read
from rewriters.source import parse
from rewriters.tags import ANNOTATE_FN, is_annotate

__all__ = ["Patch", "collect", "methods_of", "patches_in"]


@dataclasses.dataclass(frozen=True, slots=True)
class Patch:
    """``Owner.method = annotate_fn({...})(Owner.method)``.

    Args:
        call: our call for it; "" if it cannot be converted.
        argument: of the call, as code.
        reason: why it cannot be moved; "" if the class is known.
    """

    owner: str
    method: str
    call: str
    argument: str
    reason: str = ""


def patches_in(reading: Reading) -> Iterator[tuple[cst.SimpleStatementLine, Patch]]:
    """The patches of a file with their statements; names of strings are looked up in the file."""
    constants = _constants(reading.tree)
    for found in reading.calls:
        line = found.stack[-3] if len(found.stack) > 2 else None
        assigned = found.stack[-2] if len(found.stack) > 1 else None
        call = cst.ensure_type(found.node, cst.Call)
        if not isinstance(line, cst.SimpleStatementLine) or not isinstance(assigned, cst.Assign) or len(line.body) != 1:
            continue
        target = dotted(assigned.targets[0].target)
        if not is_annotate(call.func, reading.imports, ANNOTATE_FN) or target.count(".") < 1:
            continue
        if len(call.args) != 1 or dotted(call.args[0].value) != target or len(assigned.targets) != 1:
            continue
        path, _, method = target.rpartition(".")
        told = read_annotation(cst.ensure_type(call.func, cst.Call), reading.tree, constants)
        owner = path.rpartition(".")[2]
        if isinstance(told, Annotation) and not told.rest:
            yield line, Patch(owner, method, told.call, told.argument)
        else:
            reason = told if isinstance(told, str) else "the annotation has keys that are no regions"
            yield line, Patch(owner, method, "", "", reason)


def _constants(tree: cst.Module) -> dict[str, cst.BaseExpression]:
    found: dict[str, cst.BaseExpression] = {}
    for line in tree.body:
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and line.body else None
        if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.value, cst.SimpleString):
            found[dotted(small.targets[0].target)] = small.value
    return found


def methods_of(text: str, owner: str) -> set[str]:
    r"""The methods that a class of a file defines itself; none if there is no such class.

    >>> methods_of("class A:\n    def f(self): ...\n", "A")
    {'f'}
    """
    if not re.search(rf"^[ \t]*class[ \t]+{owner}\b", text, re.MULTILINE):
        return set()
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == owner]
    return {item.name for node in classes for item in node.body if isinstance(item, ast.FunctionDef)}


def collect(files: Mapping[str, bytes]) -> tuple[Patch, ...]:
    """The patches of all files of a run, each with the reason if its class is not in exactly one of them."""
    texts = {path: data.decode("utf-8", errors="ignore") for path, data in files.items()}
    found: list[Patch] = []
    for path, text in texts.items():
        if "annotate_fn" in text:
            with contextlib.suppress(RewriteError):  # the file is reported when its turn comes
                found += [patch for _, patch in patches_in(read(parse(files[path])))]
    return tuple(_placed(patch, texts.values()) for patch in found)


def _placed(patch: Patch, texts: Iterable[str]) -> Patch:
    if patch.reason:
        return patch
    places = [text for text in texts if patch.method in _methods(text, patch.owner)]
    if len(places) == 1:
        return patch
    found = (
        f"{len(places)} classes {patch.owner} define {patch.method}"
        if places
        else f"no class {patch.owner} with {patch.method}"
    )
    return dataclasses.replace(patch, reason=f"{found} among the files: give the one file that has it, too")


def _methods(text: str, owner: str) -> set[str]:
    try:
        return methods_of(text, owner)
    except SyntaxError:
        return set()  # the file is reported when its turn comes
