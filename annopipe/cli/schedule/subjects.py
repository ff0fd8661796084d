"""The schedule that a command line means: a name of the library, or a CSV file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

import annopipe as ap
from annopipe.cli.schedule.options import Counts, Model

if TYPE_CHECKING:
    from annopipe.scheduling.placement import Placement
    from annopipe.scheduling.schedule_class import Schedule
    from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["is_file", "load", "spec_of", "warn_of_unknown_operations", "with_nano_batches"]


def is_file(subject: str) -> bool:
    """Whether a subject is a path; names of the library come first."""
    if subject.lower().endswith(".csv") or os.sep in subject:
        return True
    return Path(subject).is_file() and not _is_name(subject)


def load(subject: str, counts: Counts, model: Model | None = None) -> "Schedule":
    """The schedule; a named one in an order that is made for the model's costs, if the model says so.

    Raises:
        click.UsageError: there is no such file, or options do not go with the subject.
        ScheduleError: there is no such name, the counts have no meaning for it, or the file is not wholly a schedule.
        CostError: the order is to be made for costs that do not fit the stages.
    """
    if not is_file(subject):
        return spec_of(subject, counts, model).build()
    if model is not None and model.made_for_costs:
        raise click.UsageError(f"--made-for-costs is for names: {subject} has its order")
    return _read(subject, counts)


def with_nano_batches(schedule: "Schedule", parts: int | None, model: Model, memory: float | None = None) -> "Schedule":
    """The schedule with as many nano-batches where they pay at the model's costs; as it is where none are asked for."""
    if parts is None:
        return schedule
    return ap.with_nano_batches(schedule, model.of(schedule.placement), parts, memory=memory)


def warn_of_unknown_operations(path: str, schedule: "Schedule", model: Model) -> None:
    """Say on stderr which operations of a file have no meaning here: a file only names them."""
    from annopipe.scheduling.actions import COMPUTE, MESSAGES, PARAMETERS

    timed = model.costs.operations if model.costs is not None else {}
    known = {*timed, *(operation.name for operation in schedule.operations)}
    known |= {*COMPUTE, *MESSAGES, *PARAMETERS}
    extras = schedule.programs.numbering.extras
    names = dict.fromkeys(action.kind for action in extras if not action.parts and action.kind not in known)
    if names:
        click.echo(
            f"annopipe: a file only names operations: {', '.join(names)} of {path} take no time, unless --costs "
            f"operations={{{next(iter(names))}=...}} gives it, and no memory",
            err=True,
        )


def spec_of(name: str, counts: Counts, model: Model | None = None) -> "ScheduleSpec":
    """The specification of a named schedule; raises as `load` does."""
    if is_file(name):
        raise click.UsageError(f"{name} is a file, which has actions and no specification: name a schedule")
    if counts.placement is not None:
        raise click.UsageError(f"--placement is for files: {name} has its own")
    ranks, microbatches = counts.of_names
    spec = ap.schedule_spec(name, ranks, microbatches, **counts.options)
    if model is None or not model.made_for_costs:
        return spec
    return ap.schedule_spec(name, ranks, microbatches, costs=model.of(spec.placement), **counts.options)


def _is_name(subject: str) -> bool:
    from annopipe.scheduling.library import entry

    try:
        entry(subject)
    except ap.ScheduleError:
        return False
    return True


def _read(path: str, counts: Counts) -> "Schedule":
    if not Path(path).is_file():
        raise click.UsageError(f"there is no file {path}")
    if counts.placement is None:
        given = [name for name in ("ranks", "chunks", "towers") if getattr(counts, name) is not None]
        if given:
            raise click.UsageError(f"--{given[0]}: the rows of {path} say that, unless --placement is given")
    return ap.Schedule.from_csv(path, _placement(path, counts), microbatches=counts.microbatches, name=path)


def _placement(path: str, counts: Counts) -> "Placement | None":
    kind = counts.placement
    if kind is None:
        return None
    ranks = counts.ranks or len(Path(path).read_bytes().splitlines())
    if (kind == "towers") != (counts.towers is not None):
        raise click.UsageError("--placement towers and --towers go together")
    if kind == "towers":
        return ap.schedule_spec("distmm-pipe", ranks, 1, **counts.options).placement
    if (kind in ("looped", "wave")) != (counts.chunks is not None):
        raise click.UsageError("--placement looped or wave and --chunks go together: say how many stages a rank has")
    make = getattr(ap.placement, kind)
    found: Placement = make(ranks=ranks, **counts.options)
    return found
