"""``annopipe schedule check``: whether a schedule can be run and is a whole step."""

from typing import TYPE_CHECKING

import click

import annopipe as ap
from annopipe.cli.schedule.options import Counts, Model, counts_options, model_options, subject_argument
from annopipe.cli.schedule.progress import doing
from annopipe.cli.schedule.subjects import is_file, load

if TYPE_CHECKING:
    from annopipe.scheduling.schedule_class import Schedule

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  annopipe schedule check mine.csv
  annopipe schedule check mine.csv --placement looped --chunks 2 --memory 8
  annopipe schedule check 1f1b --ranks 64 --microbatches 1024 --rendezvous
"""


@click.command("check", epilog=_EXAMPLES)
@subject_argument
@counts_options(files=True)
@click.option(
    "--memory",
    type=click.FloatRange(0),
    metavar="AMOUNT",
    help="The most activations of a rank; those of a microbatch in 1/p of the model are 1, or what --costs says.",
)
@model_options
@click.option(
    "--rendezvous",
    is_flag=True,
    help="Also for a transport in which a send waits for its receive; messages are added where there are none.",
)
def command(subject: str, counts: Counts, memory: float | None, model: Model, *, rendezvous: bool) -> None:
    """Say whether a schedule can be run and does every action of a step once; print what is wrong, with exit code 1."""
    if model.costs is not None and memory is None and not model.made_for_costs:
        raise click.UsageError("--costs says what --memory counts: give both, or --made-for-costs")
    named = None if is_file(subject) and not model.made_for_costs else load(subject, counts, model)
    try:
        with doing(f"checking {subject}"):
            schedule = named or load(subject, counts)
            schedule.check(memory=memory, costs=model.of(schedule.placement), rendezvous=rendezvous)
            if rendezvous and not _has_messages(schedule):
                schedule = schedule.lowered()
                schedule.check(rendezvous=True)
    except ap.ScheduleError as error:
        click.echo(str(error))
        raise click.exceptions.Exit(1) from None
    actions = sum(map(len, schedule.programs.ranks))
    what = "with messages" if _has_messages(schedule) else "without messages"
    stages = f"{schedule.placement.stages} stages"
    if is_file(subject) and counts.placement is None and schedule.placement.stages > 1:
        stages = f"read as a chain of {stages}"
    held = f"{schedule.placement.ranks} ranks, {stages}, {schedule.microbatches} microbatches"
    click.echo(f"{subject} passes: {held}, {actions} actions {what}")


def _has_messages(schedule: "Schedule") -> bool:
    numbering = schedule.programs.numbering
    messages = range(numbering.first("SEND_F", 0), numbering.base)
    return any(number in messages for program in schedule.programs.ranks for number in program)
