"""Take tags out of a file, comments and blank lines kept, so that what was tagged is as it was, to the byte.

needs       a fresh tree.
does        removes tags of ours from ``with`` statements and decorators, and imports that nothing else uses.
guarantees  no comment is lost: those on and in a ``with`` that goes away go to the statements around.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import libcst as cst

from rewriters.imports import is_import_of, without_imports
from rewriters.lines import Line, comment_line, with_lines
from rewriters.names import Imports, dotted
from rewriters.reading import Reading
from rewriters.tags import own_tag
from rewriters.walking import children

__all__ = ["Removed", "strip_tags", "unused_names"]


@dataclasses.dataclass(frozen=True, slots=True)
class Removed:
    """A tree without tags, and the tags that were in it."""

    tree: cst.Module
    tags: tuple[cst.Call, ...]


def strip_tags(reading: Reading) -> Removed:
    r"""The module without tags of ours.

    >>> from rewriters.reading import read
    >>> from rewriters.source import parse
    >>> tagged = b'import annopipe\n\n\ndef f(x):\n    with annopipe.region("a"):\n        return x\n'
    >>> print(strip_tags(read(parse(tagged))).tree.code)
    <BLANKLINE>
    <BLANKLINE>
    def f(x):
        return x
    <BLANKLINE>
    """
    stripper = _Stripper(reading.imports)
    tree = cst.ensure_type(reading.tree.visit(stripper), cst.Module)
    if not stripper.removed:
        return Removed(reading.tree, ())
    used = {dotted(call.func).partition(".")[0] for call in stripper.removed}
    return Removed(unused_names(tree, used, "annopipe"), tuple(stripper.removed))


def unused_names(tree: cst.Module, candidates: set[str], module: str) -> cst.Module:
    """The module without imports of ``module`` under the names ``candidates`` that nothing uses."""
    gone = candidates - set(_used(tree))

    def unwanted(name: str, alias: cst.ImportAlias, base: str) -> bool:
        return name.partition(".")[0] in gone and is_import_of(alias, base, module)

    return without_imports(tree, unwanted) if gone else tree


def _used(node: cst.CSTNode) -> Iterator[str]:
    for child in children(node):
        if isinstance(child, cst.Name):
            yield child.value
        elif not isinstance(child, (cst.Import, cst.ImportFrom)):
            yield from _used(child)


class _Stripper(cst.CSTTransformer):
    def __init__(self, imports: Imports) -> None:
        super().__init__()
        self._imports = imports
        self.removed: list[cst.Call] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Only statements matter."""
        return not isinstance(node, (cst.SimpleStatementLine, cst.BaseExpression))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Take out decorators."""
        kept: list[cst.Decorator] = []
        waiting: tuple[cst.EmptyLine, ...] = ()
        for old, new in zip(original_node.decorators, updated_node.decorators, strict=True):
            if self._is_tag(old.decorator):
                waiting = (*waiting, *new.leading_lines, *comment_line(new.trailing_whitespace))
            else:
                kept.append(new.with_changes(leading_lines=(*waiting, *new.leading_lines)))
                waiting = ()
        if len(kept) == len(updated_node.decorators):
            return updated_node
        after = (*waiting, *updated_node.lines_after_decorators)
        if kept:
            return updated_node.with_changes(decorators=kept, lines_after_decorators=after)
        lines = (*updated_node.leading_lines, *after)
        return updated_node.with_changes(decorators=(), lines_after_decorators=(), leading_lines=lines)

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> cst.With:
        """Take single items out; a ``with`` of tags only is left to its block."""
        kept = [
            new
            for old, new in zip(original_node.items, updated_node.items, strict=True)
            if not self._is_tag(old.item, take_down=False)
        ]
        if not kept or len(kept) == len(updated_node.items):
            return updated_node
        for item in original_node.items:
            self._is_tag(item.item)
        kept[-1] = kept[-1].with_changes(comma=_closing_comma(updated_node))
        return updated_node.with_changes(items=kept)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Put what was under tags only into the block."""
        spliced = self._spliced(original_node.body, updated_node.body)
        if spliced is None:
            return updated_node
        body, rest = spliced
        return updated_node.with_changes(body=body, footer=(*rest, *updated_node.footer))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """The same at the top of a file."""
        spliced = self._spliced(original_node.body, updated_node.body)
        if spliced is None:
            return updated_node
        body, rest = spliced
        return updated_node.with_changes(body=body, footer=(*rest, *updated_node.footer))

    def _spliced(
        self, original: Sequence[Line], updated: Sequence[Line]
    ) -> tuple[list[Line], tuple[cst.EmptyLine, ...]] | None:
        if not any(self._is_all_tags(node) for node in original):
            return None
        body: list[Line] = []
        waiting: tuple[cst.EmptyLine, ...] = ()
        for old, new in zip(original, updated, strict=True):
            if not self._is_all_tags(old):
                body.append(with_lines(new, waiting))
                waiting = ()
                continue
            for item in cst.ensure_type(old, cst.With).items:
                self._is_tag(item.item)
            lines, inside, waiting_after = _contents(cst.ensure_type(new, cst.With))
            inside[0] = with_lines(inside[0], (*waiting, *lines))
            body += inside
            waiting = waiting_after
        return body, waiting

    def _is_all_tags(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.With) and all(self._is_tag(item.item, take_down=False) for item in node.items)

    def _is_tag(self, node: cst.BaseExpression, *, take_down: bool = True) -> bool:
        tag = own_tag(node, self._imports)
        if tag is not None and take_down:
            self.removed.append(tag.node)
        return tag is not None


def _contents(node: cst.With) -> tuple[tuple[cst.EmptyLine, ...], list[Line], tuple[cst.EmptyLine, ...]]:
    """The lines above a ``with``, the statements in it, and the lines at its end."""
    if isinstance(node.body, cst.SimpleStatementSuite):
        line = cst.SimpleStatementLine(node.body.body, trailing_whitespace=node.body.trailing_whitespace)
        return tuple(node.leading_lines), [line], ()
    block = cst.ensure_type(node.body, cst.IndentedBlock)
    return (*node.leading_lines, *comment_line(block.header)), list(block.body), tuple(block.footer)


def _closing_comma(node: cst.With) -> cst.Comma | cst.MaybeSentinel:
    """The comma for the new last item: none outside of parentheses, the old last item's inside."""
    return node.items[-1].comma if isinstance(node.lpar, cst.LeftParen) else cst.MaybeSentinel.DEFAULT
