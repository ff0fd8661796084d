"""``annopipe schedule compare``: schedules side by side, all at the costs of one model."""

import json
import textwrap
from typing import Any

import click

import annopipe as ap
from annopipe.cli.schedule.comparing import Compared, compared
from annopipe.cli.schedule.costs import costs_text, plain_costs
from annopipe.cli.schedule.options import (
    Counts,
    Model,
    counts_options,
    json_option,
    model_options,
    nano_option,
    width_of_terminal,
)
from annopipe.cli.schedule.progress import doing

__all__ = ["command"]

_SORTS = {"makespan": "makespan", "window": "window", "bubble": "bubble", "memory": "peak_memory"}
_SORTS |= {"messages": "message_count", "communication": "comm_time", "exposed": "exposed_comm"}
_NUMBERS = (
    "ranks",
    "makespan",
    "window",
    "bubble",
    "idle",
    "peak_memory",
    "message_count",
    "comm_time",
    "exposed_comm",
)
_LONGEST_DRAWN = 4  # times the shortest
_OF_THE_MODEL = (
    "per microbatch on 1/p of the model: with v stages a rank, a stage has 1/v of the times and of the memory; a "
    "message is one stage's output and stays whole"
)
_OF_A_STAGE = "per microbatch and stage, however many stages a rank has"

_EXAMPLES = """\b
Examples:
  annopipe schedule compare --ranks 8 --costs send=0.1 --sort makespan
  annopipe schedule compare mine.csv 1f1b zbv --png three.png
"""


@click.command("compare", epilog=_EXAMPLES)
@click.argument("subjects", nargs=-1, metavar="[NAME|FILE.csv]...")
@counts_options(files=True)
@model_options
@nano_option
@click.option(
    "--memory", type=click.FloatRange(0), metavar="AMOUNT", help="Leave out schedules whose peak memory is above it."
)
@click.option("--sort", type=click.Choice([*_SORTS]), help="The smallest first; without, in the order given.")
@json_option
@click.option("--png", metavar="PATH", help="Also write a picture of all (needs matplotlib).")
@click.option("--html", metavar="PATH", help="Also write a page of all for a browser.")
def command(
    subjects: tuple[str, ...],
    counts: Counts,
    model: Model,
    *,
    nano_batches: int | None,
    memory: float | None,
    sort: str | None,
    as_json: bool,
    png: str | None,
    html: str | None,
) -> None:
    """Put schedules side by side: makespan, bubble, peak memory, messages; without names, all that train a chain.

    Costs are per microbatch on 1/p of the model, so that all schedules run the same model: with v stages a rank, a
    stage has 1/v of the times and of the memory. A message is one stage's output and stays whole; their number is the
    volume of communication. Names beside a file have the file's ranks and microbatches. What the counts have no meaning
    for, or is above --memory, is listed with the reason. With --nano-batches each is there a second time, if they pay.
    """
    costs, per_stage = model.costs or ap.costs.table(), model.per_stage
    found = compared(subjects, counts, model, memory, nano_batches)
    if sort is not None:
        found = found.sorted_by(_SORTS[sort])
    if as_json:
        given = {"costs": plain_costs(costs), "per_stage": per_stage, "made_for_costs": model.made_for_costs}
        click.echo(_json(found, given))
    else:
        made = "; orders made for them" if model.made_for_costs else ""
        click.echo(_text(found, f"{costs_text(costs)}; {_OF_A_STAGE if per_stage else _OF_THE_MODEL}{made}"))
    _draw(found, png, html)


def _json(found: Compared, given: dict[str, Any]) -> str:
    rows = [
        {"name": name, "microbatches": found.microbatches[name], **{key: getattr(timeline, key) for key in _NUMBERS}}
        for name, timeline in found.timelines.items()
    ]
    left_out = [{"name": name, "reason": reason} for name, reason in found.left_out.items()]
    return json.dumps({**given, "schedules": rows, "left_out": left_out}, indent=1)


def _text(found: Compared, costs: str) -> str:
    width = width_of_terminal()
    lines = [_counts(found), *textwrap.wrap(f"costs: {costs}", width), "", *_table(found, width)]
    if len(set(found.microbatches.values())) > 1:
        lines += ["", "Not one amount of work: the numbers of microbatches differ."]
    if found.left_out:
        lines += ["", "left out:"]
        for name, reason in found.left_out.items():
            lines += textwrap.wrap(f"{name}: {reason}", width, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _counts(found: Compared) -> str:
    counts = {(timeline.ranks, found.microbatches[name]) for name, timeline in found.timelines.items()}
    return ", ".join(f"{ranks} ranks and {microbatches} microbatches" for ranks, microbatches in sorted(counts))


def _table(found: Compared, width: int) -> list[str]:
    """The table with a head of two lines, without columns that say nothing, and in narrow terminals the second."""
    from annopipe.simulation.ranks.comparison import comparison_rows
    from annopipe.simulation.tables import table

    columns = list(zip(*comparison_rows(found.timelines), strict=True))
    if not any(timeline.comm_time or timeline.exposed_comm for timeline in found.timelines.values()):
        columns = [column for column in columns if column[0] not in ("communication", "exposed")]
    stacked = [(*_stacked(head), *cells) for head, *cells in columns]
    for shown in (stacked, [column for column in stacked if column[1] != "to" and column[0] != "to"]):
        lines = table(list(zip(*shown, strict=True)), 10_000, left=(0,))
        if max(map(len, lines)) <= width:
            return lines
    return table(list(zip(*shown, strict=True)), width, left=(0,), yielding=0)


def _stacked(head: str) -> tuple[str, str]:
    first, _, second = ("comm. time" if head == "communication" else head).rpartition(" ")
    return first, second


def _draw(found: Compared, png: str | None, html: str | None) -> None:
    from annopipe.simulation.ranks import html as pages
    from annopipe.simulation.ranks import png as pictures

    title = f"{len(found.timelines)} schedules: {_counts(found)}"
    # On one axis with a very long one, the others would be too small to read.
    shortest = min(timeline.makespan for timeline in found.timelines.values())
    drawn = {name: t for name, t in found.timelines.items() if t.makespan <= _LONGEST_DRAWN * shortest}
    if (png or html) and len(drawn) < len(found.timelines):
        longer = ", ".join(name for name in found.timelines if name not in drawn)
        title += f"; without {longer}, of more than {_LONGEST_DRAWN} times the shortest"
        click.echo(f"too long to draw beside the others: {longer}", err=True)
    for path, write in ((png, pictures.write), (html, pages.write)):
        if path:
            with doing(f"drawing {path}"):
                write(path, drawn, title)
            click.echo(f"wrote {path}", err=True)
