"""Put decorators on methods and take statements out: the edit that turns a patch list into tags."""

from collections.abc import Collection, Mapping, Sequence

import libcst as cst

from rewriters.lines import Line, comment_line, with_lines

__all__ = ["patch"]


def patch(tree: cst.Module, decorators: Mapping[int, Sequence[str]], gone: Collection[int]) -> cst.Module:
    """The module with more decorators, outermost first, and without some statements; keys are identities of nodes."""
    if not decorators and not gone:
        return tree
    return cst.ensure_type(tree.visit(_Patcher(tree, decorators, gone)), cst.Module)


class _Patcher(cst.CSTTransformer):
    def __init__(self, tree: cst.Module, decorators: Mapping[int, Sequence[str]], gone: Collection[int]) -> None:
        super().__init__()
        self._config = tree.config_for_parsing
        self._decorators = decorators
        self._gone = gone

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Only statements matter."""
        return not isinstance(node, (cst.SimpleStatementLine, cst.BaseExpression))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Put decorators on top."""
        codes = self._decorators.get(id(original_node), ())
        new = [cst.Decorator(cst.parse_expression(code, config=self._config)) for code in codes]
        return updated_node.with_changes(decorators=[*new, *updated_node.decorators]) if new else updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Take statements out; an empty block is ``pass``."""
        body, rest = self._left(original_node.body, updated_node.body)
        if len(body) == len(updated_node.body):
            return updated_node
        if not body:
            body, rest = [with_lines(cst.SimpleStatementLine([cst.Pass()]), rest)], ()
        return updated_node.with_changes(body=body, footer=(*rest, *updated_node.footer))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Take statements out."""
        body, rest = self._left(original_node.body, updated_node.body)
        if len(body) == len(updated_node.body):
            return updated_node
        return updated_node.with_changes(body=body, footer=(*rest, *updated_node.footer))

    def _left(self, original: Sequence[Line], updated: Sequence[Line]) -> tuple[list[Line], tuple[cst.EmptyLine, ...]]:
        body: list[Line] = []
        waiting: tuple[cst.EmptyLine, ...] = ()
        for old, new in zip(original, updated, strict=True):
            if id(old) in self._gone and isinstance(new, cst.SimpleStatementLine):
                waiting = (*waiting, *new.leading_lines, *comment_line(new.trailing_whitespace))
            else:
                body.append(with_lines(new, waiting))
                waiting = ()
        return body, waiting
