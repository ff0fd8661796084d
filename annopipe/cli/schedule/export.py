"""``annopipe schedule export``: a schedule as CSV, in the format of torch.distributed.pipelining."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from annopipe.cli.schedule.options import (
    Counts,
    Model,
    counts_options,
    model_options,
    nano_option,
    refuse_costs_alone,
    subject_argument,
)
from annopipe.cli.schedule.progress import doing
from annopipe.cli.schedule.subjects import load, with_nano_batches

if TYPE_CHECKING:
    from annopipe.scheduling.placement import Placement

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  annopipe schedule export zbv --ranks 8 --microbatches 16 --csv zbv.csv
  annopipe schedule export mine.csv --lowered --parameters --csv lowered.csv
"""


@click.command("export", epilog=_EXAMPLES)
@subject_argument
@counts_options(files=True)
@model_options
@nano_option
@click.option("--csv", "path", required=True, metavar="PATH", help="Where to write; - is the standard output.")
@click.option("--lowered", is_flag=True, help="With the messages between ranks.")
@click.option("--parameters", is_flag=True, help="With UNSHARD, RESHARD and REDUCE_GRAD; needs --lowered.")
@click.option("--waits", is_flag=True, help="With the waits that PyTorch 2.15 and later wants; needs --lowered.")
def command(
    subject: str,
    counts: Counts,
    model: Model,
    path: str,
    *,
    nano_batches: int | None,
    lowered: bool,
    parameters: bool,
    waits: bool,
) -> None:
    """Write a schedule as CSV, one row per rank, as PyTorch's pipelining reads it; a file that is there is replaced."""
    if parameters and not lowered:
        raise click.UsageError("--parameters goes with --lowered: PyTorch runs such actions only beside messages")
    if waits and not lowered:
        raise click.UsageError("--waits goes with --lowered: a rank waits for messages")
    if nano_batches is None:
        refuse_costs_alone(model)
    with doing(f"building {subject}"):
        schedule = with_nano_batches(load(subject, counts, model), nano_batches, model)
        schedule = schedule.lowered(parameters=parameters) if lowered else schedule
    if path == "-":
        from annopipe.scheduling.csv_format import write

        click.echo(write(schedule.programs, waits=waits), nl=False)
        return
    replaced = ", in place of what was there" if Path(path).exists() else ""
    schedule.to_csv(path, waits=waits)
    actions = sum(map(len, schedule.programs.ranks))
    kind = "with messages and parameter actions" if parameters else "with messages" if lowered else "computation only"
    kind += ", and waits" if waits else ""
    click.echo(f"wrote {path}{replaced}: {schedule.placement.ranks} rows, {actions} actions, {kind}")
    if not schedule.placement.is_chain:
        click.echo(f"The file does not say how stages follow each other: read it with {_reading(schedule.placement)}")


def _reading(placement: "Placement") -> str:
    if placement.name != "towers":
        return f"--placement {placement.name}"
    ends = placement.predecessors[-1]
    sizes = [end - start for start, end in zip((-1, *ends), ends, strict=False)]
    return f"--placement towers --towers {','.join(map(str, sizes))}"
