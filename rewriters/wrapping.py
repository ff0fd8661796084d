"""Put statements under tags: the one edit that all tagging rules share.

needs       a fresh tree, and wraps keyed by the identity of its statements.
does        replaces each statement by ``with TAG:`` around it; with ``merge``, neighbours of one tag share a ``with``.
guarantees  everything else is the same node; the lines above a statement are above its ``with``.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import libcst as cst

from rewriters.lines import Line

__all__ = ["Wrap", "wrap"]


@dataclasses.dataclass(frozen=True, slots=True)
class Wrap:
    """What to do with one statement.

    Args:
        tag: the text of the context manager for the whole statement, ``annopipe.comm("dispatch")``, or "".
        hoisted: instead, calls to take out into variables, so that only they are under a tag: call, variable, tag.
    """

    tag: str
    hoisted: tuple[tuple[cst.Call, str, str], ...] = ()


def wrap(tree: cst.Module, wraps: Mapping[int, Wrap], *, merge: bool = False) -> cst.Module:
    """The module with its statements wrapped; keys are ``id(statement)``."""
    result = tree.visit(_Wrapper(tree, wraps, merge=merge))
    return cst.ensure_type(result, cst.Module)


class _Wrapper(cst.CSTTransformer):
    def __init__(self, tree: cst.Module, wraps: Mapping[int, Wrap], *, merge: bool) -> None:
        super().__init__()
        self._config = tree.config_for_parsing
        self._wraps = wraps
        self._merge = merge

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Only statements matter."""
        return not isinstance(node, (cst.SimpleStatementLine, cst.BaseExpression))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Wrap the statements of a block."""
        body = self._body(original_node.body, updated_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Wrap the statements at the top of a file."""
        body = self._body(original_node.body, updated_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def _body(self, original: Sequence[Line], updated: Sequence[Line]) -> list[Line] | None:
        if not any(id(node) in self._wraps for node in original):
            return None
        body: list[Line] = []
        before: Wrap | None = None
        for old, new in zip(original, updated, strict=True):
            wanted = self._wraps.get(id(old))
            if wanted is None:
                body.append(new)
            elif wanted.hoisted:
                body += self._hoist(old, wanted.hoisted)
            elif self._merge and before is not None and before.tag == wanted.tag and not before.hoisted:
                body[-1] = _grown(cst.ensure_type(body[-1], cst.With), new)
            else:
                body.append(self._with(wanted.tag, new))
            before = wanted
        return body

    def _with(self, tag: str, node: Line) -> cst.With:
        lines = node.leading_lines  # type: ignore[union-attr]
        item = cst.WithItem(cst.parse_expression(tag, config=self._config))
        block = cst.IndentedBlock([node.with_changes(leading_lines=())])
        return cst.With([item], block, leading_lines=lines)

    def _hoist(self, node: Line, hoisted: Sequence[tuple[cst.Call, str, str]]) -> list[Line]:
        result: list[Line] = []
        for call, name, tag in hoisted:
            assigned = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], call)])
            result.append(self._with(tag, assigned))
        lines = node.leading_lines  # type: ignore[union-attr]
        rest = cst.ensure_type(
            node.visit(_Variables({id(call): name for call, name, _ in hoisted})), cst.SimpleStatementLine
        )
        result[0] = result[0].with_changes(leading_lines=lines)
        return [*result, rest.with_changes(leading_lines=())]


def _grown(block: cst.With, node: Line) -> cst.With:
    inside = cst.ensure_type(block.body, cst.IndentedBlock)
    return block.with_changes(body=inside.with_changes(body=[*inside.body, node]))


class _Variables(cst.CSTTransformer):
    """Puts variables in the place of calls."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names = names

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """A variable, if the call has one."""
        name = self._names.get(id(original_node))
        return updated_node if name is None else cst.Name(name)
