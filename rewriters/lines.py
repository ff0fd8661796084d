"""Lines above statements and comments behind them, moved without loss."""

from collections.abc import Sequence

import libcst as cst

__all__ = ["Line", "comment_line", "with_lines"]

Line = cst.BaseStatement | cst.SimpleStatementLine


def with_lines(node: Line, lines: Sequence[cst.EmptyLine]) -> Line:
    """A statement with more lines above it."""
    if not lines:
        return node
    return node.with_changes(leading_lines=(*lines, *node.leading_lines))  # type: ignore[union-attr]


def comment_line(end: cst.TrailingWhitespace) -> tuple[cst.EmptyLine, ...]:
    """The comment at the end of a line as a line of its own, or nothing."""
    return () if end.comment is None else (cst.EmptyLine(comment=end.comment),)
