"""Lines above statements and comments behind them, moved without loss."""

import collections
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

__all__ = ["Line", "comment_line", "comments_in", "lost_comments", "with_lines"]

Line = cst.BaseStatement | cst.SimpleStatementLine


def with_lines(node: Line, lines: Sequence[cst.EmptyLine]) -> Line:
    """A statement with more lines above it."""
    if not lines:
        return node
    return node.with_changes(leading_lines=(*lines, *node.leading_lines))  # type: ignore[union-attr]


def comment_line(end: cst.TrailingWhitespace) -> tuple[cst.EmptyLine, ...]:
    """The comment at the end of a line as a line of its own, or nothing."""
    return () if end.comment is None else (cst.EmptyLine(comment=end.comment),)


def comments_in(node: cst.CSTNode) -> list[str]:
    """All comments of a node, in order."""
    return [cst.ensure_type(found, cst.Comment).value for found in m.findall(node, m.Comment())]


def lost_comments(before: Sequence[cst.CSTNode], after: Sequence[cst.CSTNode]) -> tuple[cst.EmptyLine, ...]:
    """The comments of some nodes that are not in others, as lines of their own."""
    kept = collections.Counter(comment for node in after for comment in comments_in(node))
    lost = []
    for comment in (comment for node in before for comment in comments_in(node)):
        if kept[comment]:
            kept[comment] -= 1
        else:
            lost.append(cst.EmptyLine(comment=cst.Comment(comment)))
    return tuple(lost)
