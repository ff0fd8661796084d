"""Exchange items of ``with`` statements and decorators for others: the edit that both conversions of tags share."""

import dataclasses
from collections.abc import Mapping, Sequence

import libcst as cst

__all__ = ["Exchange", "exchange"]


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """New code, keyed by the identity of what it replaces.

    Args:
        items: for an item of a ``with`` statement: what comes in its place; nothing drops it.
        decorators: for a decorator: the new expression.
    """

    items: Mapping[int, Sequence[str]]
    decorators: Mapping[int, str]


def exchange(tree: cst.Module, wanted: Exchange) -> cst.Module:
    """The module with the exchanges made; comments and everything else stay."""
    if not wanted.items and not wanted.decorators:
        return tree
    return cst.ensure_type(tree.visit(_Exchanger(tree, wanted)), cst.Module)


class _Exchanger(cst.CSTTransformer):
    def __init__(self, tree: cst.Module, wanted: Exchange) -> None:
        super().__init__()
        self._config = tree.config_for_parsing
        self._wanted = wanted

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Only statements matter."""
        return not isinstance(node, (cst.SimpleStatementLine, cst.BaseExpression))

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> cst.With:
        """Exchange its items."""
        if not any(id(item) in self._wanted.items for item in original_node.items):
            return updated_node
        items: list[cst.WithItem] = []
        for old in original_node.items:
            codes = self._wanted.items.get(id(old))
            if codes is None:
                items.append(old)
                continue
            new = [cst.WithItem(cst.parse_expression(code, config=self._config), comma=_COMMA) for code in codes]
            if new:
                new[-1] = new[-1].with_changes(comma=old.comma)
            elif items:
                items[-1] = items[-1].with_changes(comma=old.comma)
            items += new
        return updated_node.with_changes(items=items)

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> cst.Decorator:
        """Exchange it."""
        code = self._wanted.decorators.get(id(original_node))
        if code is None:
            return updated_node
        return updated_node.with_changes(decorator=cst.parse_expression(code, config=self._config))


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
