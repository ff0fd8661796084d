"""``annopipe schedule list``: the schedules that have names, and what is known about each."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

import annopipe as ap
from annopipe.cli.schedule.options import json_option, width_of_terminal

if TYPE_CHECKING:
    from annopipe.scheduling.library import Entry

__all__ = ["command"]

_HEAD = ("name", "what for", "bubble", "peak memory")
_LEGEND = (
    "p ranks, m microbatches, v stages a rank, rank r; F, B = I + W, FB: times of forward, backward, both as one. "
    "Bubble: idle time of a rank, with the times of one microbatch on 1/p of the model. Window: from a rank's first "
    "action to its last. Peak: activations, one is what a microbatch leaves on 1/p of the model."
)


@click.command("list")
@json_option
def command(*, as_json: bool) -> None:
    """List the schedules that have names: options, what for, and formulas of bubble and peak memory.

    The class names of PyTorch's schedules are known too: annopipe schedule show ScheduleZBVZeroBubble
    """
    from annopipe.scheduling.library import entry

    entries = [entry(name) for name in ap.schedules()]
    if as_json:
        click.echo(json.dumps([_described(found) for found in entries], indent=1))
        return
    width = width_of_terminal()
    rows = [_HEAD, *((_name_and_options(found), found.use, found.bubble, found.peak) for found in entries)]
    click.echo("\n".join(_wrapped(rows, width)))
    click.echo()
    click.echo(textwrap.fill(_LEGEND, width))


def _described(found: "Entry") -> dict[str, Any]:
    plain = {field.name: getattr(found, field.name) for field in fields(found) if field.name != "spec"}
    return {**plain, "options": dict(found.options)}


def _name_and_options(found: "Entry") -> str:
    options = (f"--{name} {default}" if default is not None else f"--{name}" for name, default in found.options)
    return "\n  ".join([found.name, *options])


def _wrapped(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines of a table whose second column takes what the others leave, texts broken at spaces."""
    longest = [max(len(line) for row in rows for line in row[column].split("\n")) for column in range(len(rows[0]))]
    widths = [longest[0], 0, min(longest[2], width // 4), min(longest[3], width // 5 + 2)]
    widths[1] = min(longest[1], max(16, width - sum(widths) - 6))
    lines = []
    for row in rows:
        cells = [row[0].split("\n")]
        cells += [
            textwrap.wrap(cell, most, break_on_hyphens=False) for cell, most in zip(row[1:], widths[1:], strict=True)
        ]
        for number in range(max(map(len, cells))):
            texts = (cell[number] if number < len(cell) else "" for cell in cells)
            lines.append("  ".join(f"{text:<{most}}" for text, most in zip(texts, widths, strict=True)).rstrip())
    return lines
