"""What must hold before a byte is written; each check is independent of the code that made the edit.

1. the output parses;
2. for safe rules, the ``ast`` of the output without tags equals that of the input without tags;
3. every comment of the input is in the output;
4. encoding and newlines are those of the input.

That a second run changes nothing is checked by the engine, which can run again.
"""

import ast
import collections
import io
import tokenize

from annopipe.errors import RewriteError

__all__ = ["check_output", "comments", "without_tags"]

_OWN = {"region", "comm", "nano_batch"}
_FOREIGN = {"annotate", "annotate_fn"}


def check_output(before: bytes, after: bytes, *, neutral: bool) -> None:
    """Compare a file before and after.

    Args:
        neutral: only tags may differ.

    Raises:
        RewriteError: something else does: a defect of annopipe, and nothing is written.

    >>> check_output(b"x = f(y)  # why", b"x = f(z)  # why", neutral=True)
    Traceback (most recent call last):
    annopipe.errors.RewriteError: the rewritten file differs in more than tags...
    """
    try:
        tree = ast.parse(after)
    except (SyntaxError, ValueError) as error:
        raise _defect(f"is not valid Python ({error})") from error
    if neutral and without_tags(tree) != without_tags(ast.parse(before)):
        raise _defect("differs in more than tags")
    lost = comments(before) - comments(after)
    if lost:
        raise _defect(f"has lost a comment ({next(iter(lost))!r})")
    if _format_of(before) != _format_of(after):
        raise _defect("has another encoding or other newlines")


def _defect(what: str) -> RewriteError:
    return RewriteError(
        f"the rewritten file {what}: nothing was written; this is a defect of annopipe, please report it"
    )


def comments(data: bytes) -> collections.Counter[str]:
    """The comments of a file, each with its count; those that are pragmas of conversions count, too."""
    tokens = tokenize.tokenize(io.BytesIO(data).readline)
    return collections.Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


def _format_of(data: bytes) -> tuple[str, bool, bool, bool]:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    bare = data.replace(b"\r\n", b"")
    return encoding, b"\r\n" in data, b"\n" in bare, b"\r" in bare


def without_tags(tree: ast.Module) -> str:
    r"""A module as text, without tags of either kind, what they are imported by, and patch lists.

    >>> same = [ast.parse("import annopipe\nwith annopipe.comm('d'):\n    x = 1"), ast.parse("x = 1")]
    >>> len({without_tags(tree) for tree in same})
    1
    """
    names = _Names()
    names.visit(tree)
    return ast.dump(_Untagger(names.bound).visit(tree))


class _Names(ast.NodeVisitor):
    """Which names mean annopipe, or PyTorch's annotate."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        """``import a.b as c``."""
        for alias in node.names:
            head = alias.name.partition(".")[0]
            self.bound[alias.asname or head] = alias.name if alias.asname else head

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """``from a import b as c``."""
        for alias in node.names:
            self.bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"


class _Untagger(ast.NodeTransformer):
    def __init__(self, bound: dict[str, str]) -> None:
        self._bound = bound

    def _is_tag(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        head, dot, rest = ast.unparse(node.func).partition(".")
        module, _, name = (self._bound.get(head, head) + dot + rest).rpartition(".")
        own = module in ("annopipe", "annopipe.annotate") and name in _OWN
        return own or (module == "torch.fx.traceback" and name in _FOREIGN)

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        """Its tags go."""
        self.generic_visit(node)
        node.items = [item for item in node.items if not self._is_tag(item.context_expr)]
        return node if node.items else node.body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Its tags go."""
        self.generic_visit(node)
        node.decorator_list = [call for call in node.decorator_list if not self._is_tag(call)]
        node.body = node.body or [ast.Pass()]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        """``A.f = annotate_fn({...})(A.f)`` goes."""
        value = node.value
        return None if isinstance(value, ast.Call) and self._is_tag(value.func) else node

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        """Imports of annopipe and of PyTorch's module for tags go."""
        node.names = [a for a in node.names if a.name not in ("annopipe", "annopipe.annotate", "torch.fx.traceback")]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        """The same."""
        if node.module in ("annopipe", "annopipe.annotate", "torch.fx.traceback"):
            node.names = [a for a in node.names if a.name not in _OWN | _FOREIGN]
        return node if node.names else None
