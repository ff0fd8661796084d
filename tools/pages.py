"""The code in a page of documentation, run as a reader would: python blocks in order, in one namespace.

A block that begins with ```python is code; one with ```text right behind it is what the code prints. A block with
```console holds commands, as ``$ annopipe schedule list``, each with what it prints below it, or nothing when that
does not matter. A line that is ``...`` stands for any lines.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

__all__ = ["Block", "Command", "blocks", "commands", "matches", "run_python"]

ANY_LINES = "..."
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block of a page: what it begins with, its lines, the line of the page it begins at, what is to be printed."""

    language: str
    text: str
    line: int
    expected: str | None = None


@dataclass(frozen=True)
class Command:
    """A command line of a console block, and what it is to print; None is anything."""

    line: str
    expected: str | None


def blocks(page: str) -> list[Block]:
    r"""The blocks of a page; python blocks with the text block right behind them.

    >>> [(block.language, block.expected) for block in blocks("```python\n1\n```\n\n```text\n2\n```\n")]
    [('python', '2\n'), ('text', None)]
    >>> blocks("words")
    []
    """
    found = list(_BLOCK.finditer(page))
    result = []
    for match, after in zip(found, [*found[1:], None][: len(found)], strict=True):
        printed = after is not None and after[1] == "text" and not page[match.end() : after.start()].strip()
        expected = after[2] if after is not None and printed and match[1] == "python" else None
        result.append(Block(match[1], match[2], page.count("\n", 0, match.start()) + 2, expected))
    return result


def commands(page: str) -> list[Command]:
    r"""The command lines of a page.

    >>> commands("```console\n$ annopipe doctor\n$ annopipe schedule list\nnaive\n```\n")
    [Command(line='annopipe doctor', expected=None), Command(line='annopipe schedule list', expected='naive\n')]
    """
    result = []
    for block in blocks(page):
        if block.language == "console":
            for part in f"\n{block.text}".split("\n$ ")[1:]:
                line, _, printed = part.partition("\n")
                result.append(Command(line, printed.rstrip("\n") + "\n" if printed.strip() else None))
    return result


def matches(expected: str, printed: str) -> bool:
    r"""Whether a text is what was expected, up to spaces at the ends of lines.

    >>> matches("a\n...\nd\n", "a\nb \nc\nd\n"), matches("a\n...\nd\n", "a\nb\n")
    (True, False)
    """
    pattern = "".join(
        "(?:.*\n)*" if line.rstrip() == ANY_LINES else re.escape(line.rstrip()) + "\n" for line in expected.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.splitlines())) is not None


def run_python(page: str, name: str) -> Iterator[tuple[Block, str]]:
    """Run the python blocks one after the other in the current folder; gives each with what it printed."""
    # Pickling and dataclasses look a class's module up.
    module = ModuleType(f"page_{re.sub(r'[^0-9a-z]', '_', name)}")
    sys.modules[module.__name__] = module
    try:
        for block in blocks(page):
            if block.language == "python":
                # Line numbers of errors are those of the page.
                code = compile("\n" * (block.line - 1) + block.text, name, "exec")
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(code, vars(module))  # noqa: S102 - the page is ours
                yield block, printed.getvalue()
    finally:
        del sys.modules[module.__name__]
