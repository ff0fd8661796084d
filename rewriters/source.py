"""A file's text as libcst's tree, read so that what nobody changes is written back byte for byte."""

import dataclasses
import re

import libcst as cst

from annopipe.errors import RewriteError

__all__ = ["GENERATED", "SKIP_FILE", "Source", "generated_from", "parse"]

GENERATED = re.compile(r"automatically generated from\s+(\S+?)\.?\s|@" + "generated")
SKIP_FILE = re.compile(r"#\s*annopipe:\s*skip-file\b")


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A parsed file."""

    data: bytes
    tree: cst.Module

    @property
    def text(self) -> str:
        """The file as text, without a byte-order mark, newlines as they are."""
        return self.data.decode(self.tree.encoding).removeprefix("\ufeff")


def parse(data: bytes, *, trusted: bool = False) -> Source:
    r"""Parse a file.

    Args:
        trusted: libcst has written the file.

    Raises:
        RewriteError: it is no Python that libcst can read, or libcst would not write it back as it is.

    >>> parse(b"x = 1\r\n").tree.default_newline
    '\r\n'
    """
    try:
        tree = cst.parse_module(data)
    except cst.ParserSyntaxError as error:
        raise RewriteError(
            f"line {error.raw_line}: cannot be parsed ({error.message.splitlines()[0]}): mend it, or leave the file out"
        ) from error
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        raise RewriteError(f"cannot be read as Python: {error}") from error
    except RecursionError as error:
        raise RewriteError("nested too deeply for libcst: leave the file out, or split the expression") from error
    if not trusted and tree.bytes != data:
        raise RewriteError("libcst does not write this file back as it is (a byte-order mark, or odd whitespace)")
    return Source(data, tree)


def generated_from(text: str) -> str | None:
    r"""The file that this one is generated from, "" if it does not say, None if it is not generated.

    >>> generated_from("# This file was automatically generated from src/modular_mine.py.\n")
    'src/modular_mine.py'
    """
    found = GENERATED.search(text[:3000])
    return None if found is None else found[1] or ""
