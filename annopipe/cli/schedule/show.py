"""``annopipe schedule show``: one schedule as a drawing, a picture, numbers, actions or its specification."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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
from annopipe.cli.schedule.printing import grid_of_actions, specification
from annopipe.cli.schedule.progress import doing
from annopipe.cli.schedule.subjects import (
    is_file,
    load,
    spec_of,
    warn_of_unknown_operations,
    with_nano_batches,
)

if TYPE_CHECKING:
    from annopipe.scheduling.schedule_class import Schedule
    from annopipe.simulation import ScheduleTimeline

__all__ = ["command"]

_NUMBERS = ("name", "ranks", "makespan", "window", "bubble", "idle", "peak_memory")
_NUMBERS_OF_MESSAGES = ("message_count", "comm_time", "exposed_comm")
_BY_RANK = ("busy", "bubbles", "exposed", "peaks")

_EXAMPLES = """\b
Examples:
  annopipe schedule show zb-h1
  annopipe schedule show dualpipev --ranks 8 --microbatches 24 --png dualpipev.png
  annopipe schedule show mine.csv --placement v --grid
  annopipe schedule show dualpipev --nano-batches 2 --costs "F=1,FB=2.1,exposed={F=0.4},lanes={'F/2'=0.7}"
"""


@click.command("show", epilog=_EXAMPLES)
@subject_argument
@counts_options(files=True)
@model_options
@nano_option
@click.option("--png", metavar="PATH", help="Also write a picture (needs matplotlib).")
@click.option("--html", metavar="PATH", help="Also write a page for a browser.")
@click.option("--perfetto", metavar="PATH", help="Also write a trace for ui.perfetto.dev.")
@click.option("--spec", "as_spec", is_flag=True, help="Print the specification instead, of a named schedule.")
@click.option("--grid", "as_grid", is_flag=True, help="Print the actions instead, a row per rank.")
@json_option
def command(
    subject: str,
    counts: Counts,
    model: Model,
    *,
    nano_batches: int | None,
    png: str | None,
    html: str | None,
    perfetto: str | None,
    as_spec: bool,
    as_grid: bool,
    as_json: bool,
) -> None:
    """Draw a schedule as it runs at some costs: F, I and W take 1 s, unless --costs says else.

    Costs are per microbatch on 1/p of the model, as in compare: with v stages a rank, a stage has 1/v of the times and
    of the memory, unless --per-stage is given. A message stays whole. The order of a named schedule is its usual one,
    whatever the costs are, unless --made-for-costs is given.
    """
    if as_spec + as_grid + as_json > 1:
        raise click.UsageError("--spec, --grid and --json each print something else: give one of them")
    if as_spec and (nano_batches or (model.costs and not model.made_for_costs) or png or html or perfetto):
        raise click.UsageError(
            "--spec shows what the schedule is made from, before it runs: give it without costs or pictures"
        )
    if as_spec:
        click.echo(specification(spec_of(subject, counts, model), width_of_terminal()))
        return
    with doing(f"building {subject}"):
        schedule = load(subject, counts, model)
    _warn_of_broken_file(subject, schedule)
    with doing(f"choosing nano-batches for {subject}"):
        schedule = with_nano_batches(schedule, nano_batches, model)
    if as_grid:
        click.echo(grid_of_actions(schedule.programs, width_of_terminal()))
    if as_grid and not (png or html or perfetto):
        return
    with doing(f"simulating {subject}"):
        if is_file(subject):
            warn_of_unknown_operations(subject, schedule, model)
        timeline = ap.simulate(schedule, model.of(schedule.placement))
        printed = "" if as_grid else _numbers(timeline, schedule) if as_json else _drawing(timeline)
    if printed:
        click.echo(printed)
    if printed and not as_json and schedule.nano_batching is not None:
        click.echo(f"\n{schedule.nano_batching}")
    if printed and not as_json and is_file(subject) and counts.placement is None and schedule.placement.stages > 1:
        click.echo(f"\nread as a chain of {schedule.placement.stages} stages; --placement says else")
    title = f"{schedule.name}: {timeline.ranks} ranks, {schedule.microbatches} microbatches"
    drawn = ((png, timeline.to_png, (title,)), (html, timeline.to_html, (title,)), (perfetto, timeline.to_perfetto, ()))
    for path, write, titled in drawn:
        if path:
            with doing(f"drawing {path}"):
                write(path, *titled)
            click.echo(f"wrote {path}", err=True)


def _drawing(timeline: "ScheduleTimeline") -> str:
    from annopipe.simulation.ranks.text import render

    return render(timeline, width_of_terminal())


def _numbers(timeline: "ScheduleTimeline", schedule: "Schedule") -> str:
    found: dict[str, Any] = {name: getattr(timeline, name) for name in (*_NUMBERS, *_NUMBERS_OF_MESSAGES, *_BY_RANK)}
    if schedule.nano_batching is not None:
        found["nano_batching"] = asdict(schedule.nano_batching)
    return json.dumps({**found, "critical_path": [entry.text for entry in timeline.critical_path]}, indent=1)


def _warn_of_broken_file(subject: str, schedule: "Schedule") -> None:
    if is_file(subject):
        try:
            schedule.check()
        except ap.ScheduleError as error:
            problem = str(error).splitlines()[0]
            click.echo(f"annopipe: {subject} does not pass annopipe schedule check: {problem}", err=True)
