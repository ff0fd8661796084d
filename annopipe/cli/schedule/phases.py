"""``annopipe schedule phases``: time, hidden and exposed communication of the phases of a step, rank by rank."""

import json
import textwrap

import click

import annopipe as ap
from annopipe.cli.schedule.options import (
    Counts,
    Model,
    counts_options,
    json_option,
    model_options,
    nano_option,
    subject_argument,
    width_of_terminal,
)
from annopipe.cli.schedule.progress import doing
from annopipe.cli.schedule.subjects import load, with_nano_batches

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  annopipe schedule phases dualpipev --costs "FB=2.1,exposed={F=0.4,I=0.4,FB=0.1}"
  annopipe schedule phases 1f1b --nano-batches 2 --costs "exposed={F=0.4,I=0.4},lanes={'F/2'=0.7,'B/2'=1.7}"
"""


@click.command("phases", epilog=_EXAMPLES)
@subject_argument
@counts_options(files=True)
@model_options
@nano_option
@json_option
def command(subject: str, counts: Counts, model: Model, *, nano_batches: int | None, as_json: bool) -> None:
    """Say how long warm-up, steady state and cool-down take on each rank, and what communication they hide and expose.

    The steady state of a rank goes from its first combination of a forward with a backward to the last; where there is
    none, from its first backward to its last forward. With --nano-batches, before and after.
    """
    from annopipe.simulation.ranks.phases import phase_numbers, phase_table

    with doing(f"simulating {subject}"):
        schedule = load(subject, counts, model)
        costs = model.of(schedule.placement)
        timelines = {schedule.name: ap.simulate(schedule, costs)}
        chosen = with_nano_batches(schedule, nano_batches, model)
        if nano_batches is not None:
            timelines = {"before": timelines[schedule.name], "after": ap.simulate(chosen, costs)}
    if as_json:
        click.echo(json.dumps(phase_numbers(timelines), indent=1))
        return
    click.echo(phase_table(timelines))
    if chosen.nano_batching is not None:
        click.echo("\n" + textwrap.fill(chosen.nano_batching.reason, width_of_terminal()))
