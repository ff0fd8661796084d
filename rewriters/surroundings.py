"""What is around a place: its statement, its blocks, the tags it is under, and why it cannot be wrapped."""

import re
from collections.abc import Iterator

import libcst as cst

from rewriters.names import dotted
from rewriters.reading import Found, Reading
from rewriters.tags import Tag, is_annotate, item_calls, own_tag
from rewriters.walking import children

__all__ = ["FOREIGN", "Statement", "blocks", "enclosing_tags", "functions", "is_without_grad", "obstacle", "statement"]

Statement = cst.SimpleStatementLine | cst.For
FOREIGN = "(torch.fx.traceback.annotate)"
_SKIP = re.compile(r"#\s*annopipe:\s*skip\b(?!-)")
_OPAQUE = ("torch.jit.script", "torch.jit.script_method", "torch.library.custom_op", "torch.library.triton_op")


def statement(found: Found) -> Statement | None:
    """The statement to wrap: a loop itself, or the line that holds a call."""
    if isinstance(found.node, cst.For):
        return found.node
    for node in reversed(found.stack):
        if isinstance(node, cst.SimpleStatementLine):
            return node
        if isinstance(node, cst.BaseCompoundStatement):
            return None
    return None


def obstacle(found: Found, reading: Reading) -> str:
    """Why the statement cannot be wrapped, and what to do; "" if it can."""
    if isinstance(found.node, cst.For):
        return _suspending(found.node) or _unreached(found, reading)
    for node in reversed(found.stack):
        match node:
            case cst.Lambda():
                return "inside a lambda, which runs elsewhere: make it a function"
            case cst.GeneratorExp():
                return "inside a generator expression, which runs later: make it a list or a loop"
            case cst.SimpleStatementSuite():
                return "on the line of its if, for or def: put the statement on a line of its own"
            case cst.SimpleStatementLine():
                if len(node.body) > 1:
                    return "several statements on one line: put each on a line of its own"
                break
            case cst.BaseCompoundStatement():
                return "in the header of a statement: move the call to a statement of its own"
    line = statement(found)
    if line is None:
        return "in no statement of its own"
    return _suspending(line) or _unreached(found, reading)


def _suspending(line: Statement) -> str:
    if not _suspends(line):
        return ""
    return "the statement suspends (yield or await), and a tag would stay open meanwhile: split the statement"


def _suspends(node: cst.CSTNode) -> bool:
    if isinstance(node, (cst.Lambda, cst.FunctionDef, cst.ClassDef)):
        return False
    if isinstance(node, (cst.Await, cst.Yield)) or (isinstance(node, cst.CompFor) and node.asynchronous is not None):
        return True
    return any(_suspends(child) for child in children(node))


def _unreached(found: Found, reading: Reading) -> str:
    for node in reversed(found.stack):
        if isinstance(node, cst.ClassDef):
            for base in node.bases:
                if reading.imports.qualified(dotted(base.value)).endswith(
                    ("autograd.Function", "autograd.function.Function")
                ):
                    return f"inside the autograd.Function {node.name.value}: tag where it is applied"
        if isinstance(node, cst.FunctionDef):
            for decorator in item_calls(node):
                call = decorator.func if isinstance(decorator, cst.Call) else decorator
                if (name := reading.imports.qualified(dotted(call))) in _OPAQUE:
                    return f"inside a function under {name}, whose body is not traced: tag where it is called"
    return ""


def says_skip(node: Statement) -> bool:
    """Whether a comment above or behind the statement says ``# annopipe: skip``."""
    if isinstance(node, cst.For):
        ends = [node.body.header] if isinstance(node.body, cst.IndentedBlock) else []
    else:
        ends = [node.trailing_whitespace]
    comments = [line.comment for line in node.leading_lines] + [end.comment for end in ends]
    return any(comment is not None and _SKIP.match(comment.value) for comment in comments)


def _inside_function(found: Found) -> Iterator[cst.CSTNode]:
    """The ancestors from the innermost outward, up to the function that runs them, and that function."""
    for node in reversed(found.stack):
        if node is not found.node:
            yield node
        if isinstance(node, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return


def enclosing_tags(found: Found, reading: Reading) -> list[Tag | str]:
    """The tags that are open around a place: ours, or ``FOREIGN``, innermost first."""
    tags: list[Tag | str] = []
    for node in _inside_function(found):
        if isinstance(node, (cst.With, cst.FunctionDef)):
            for call in reversed(item_calls(node)):
                tag = own_tag(call, reading.imports)
                if tag is not None and tag.call != "nano_batch":
                    tags.append(tag)
                elif is_annotate(call, reading.imports):
                    tags.append(FOREIGN)
    return tags


def is_without_grad(found: Found, reading: Reading) -> bool:
    """Whether the place is under ``torch.no_grad()``."""
    calls = (
        call
        for node in _inside_function(found)
        if isinstance(node, (cst.With, cst.FunctionDef))
        for call in item_calls(node)
    )
    names = (reading.imports.qualified(dotted(call.func if isinstance(call, cst.Call) else call)) for call in calls)
    return any(name in ("torch.no_grad", "torch.inference_mode") for name in names)


def functions(found: Found) -> list[str]:
    """The functions around a place, innermost first."""
    return [node.name.value for node in reversed(found.stack) if isinstance(node, cst.FunctionDef)]


def blocks(found: Found) -> Iterator[tuple[cst.IndentedBlock, cst.CSTNode]]:
    """The blocks around a place with the statement in each, innermost first; not beyond a loop or the function."""
    stack = (*found.stack, found.node)
    for index in range(len(stack) - 1, 0, -1):
        node = stack[index - 1]
        if isinstance(node, cst.IndentedBlock):
            yield node, stack[index]
        if isinstance(node, (cst.For, cst.While, cst.FunctionDef)):
            return
