"""Docstrings of this house as Sphinx reads them: fields without a heading get one, indented lines are code."""

import re
from typing import Any

__all__ = ["as_sphinx_reads", "connect"]

_FIELD = re.compile(r"[A-Za-z_][\w, ]*: ")
_SECTION = re.compile(r"[A-Z]\w+:$")
_BEFORE_NAPOLEON = 400


def connect(app: Any) -> None:
    """Have Sphinx read docstrings through `as_sphinx_reads`."""
    app.connect("autodoc-process-docstring", _process, priority=_BEFORE_NAPOLEON)


def as_sphinx_reads(lines: list[str]) -> list[str]:
    """The lines, with "Attributes:" above paragraphs that are fields and nothing else, and "::" above indented ones.

    >>> as_sphinx_reads(["A port.", "", "name: unique.", "role: what it is, and", "    more of it."])
    ['A port.', '', 'Attributes:', '    name: unique.', '    role: what it is, and', '        more of it.']
    >>> as_sphinx_reads(["Call it:", "", "    run()"])
    ['Call it:', '', '::', '', '    run()']
    """
    result: list[str] = []
    in_section = False
    for paragraph in _paragraphs(lines):
        own = [line for line in paragraph if not line.startswith(" ")]
        if own:
            in_section = _SECTION.match(own[-1]) is not None
        is_fields = len(paragraph) > 1 and paragraph[0] in own and all(map(_FIELD.match, own))
        if is_fields:
            result += ["Attributes:", *(f"    {line}" for line in paragraph)]
        elif own or in_section:
            result += paragraph
        else:
            result += ["::", "", *paragraph]
        result.append("")
    return result[:-1]


def _paragraphs(lines: list[str]) -> list[list[str]]:
    """Lines between empty ones."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001 - Sphinx's
    lines[:] = as_sphinx_reads(lines)
