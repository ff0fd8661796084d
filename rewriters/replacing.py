"""Put other statements in the place of some: the edit that the unsafe rules share."""

from collections.abc import Mapping, Sequence

import libcst as cst

from rewriters.lines import Line, with_lines

__all__ = ["Edits", "replace", "statements"]

Edits = dict[int, Sequence[Line]]  # what comes in the place of a statement, by its identity


def statements(code: str, tree: cst.Module) -> list[Line]:
    """Code as statements of a module's style."""
    return list(cst.parse_module(code, tree.config_for_parsing).body)


def replace(tree: cst.Module, wanted: Mapping[int, Sequence[Line]]) -> cst.Module:
    """The module with other statements; keys are identities, and the lines above go to the first new statement."""
    return cst.ensure_type(tree.visit(_Replacer(wanted)), cst.Module) if wanted else tree


class _Replacer(cst.CSTTransformer):
    def __init__(self, wanted: Mapping[int, Sequence[Line]]) -> None:
        super().__init__()
        self._wanted = wanted

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Only statements matter."""
        return not isinstance(node, (cst.SimpleStatementLine, cst.BaseExpression))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Exchange the statements of a block."""
        if not any(id(node) in self._wanted for node in original_node.body):
            return updated_node
        body: list[Line] = []
        for old, new in zip(original_node.body, updated_node.body, strict=True):
            if id(old) in self._wanted:
                first, *rest = self._wanted[id(old)]
                lines = old.leading_lines  # type: ignore[attr-defined]
                body += [with_lines(first.with_changes(leading_lines=()), lines), *rest]
            else:
                body.append(new)
        return updated_node.with_changes(body=body)
