"""The schedules that one comparison is about: built, checked, simulated at the costs of one model, or left out."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

import annopipe as ap
from annopipe.cli.schedule.options import Counts, Model
from annopipe.cli.schedule.progress import doing
from annopipe.cli.schedule.subjects import is_file, load, warn_of_unknown_operations, with_nano_batches

if TYPE_CHECKING:
    from annopipe.scheduling.schedule_class import Schedule
    from annopipe.simulation import ScheduleTimeline

__all__ = ["Compared", "compared"]

_ROUNDING = 1e-9  # sums of shares, as eight times 1/8
_NOT_BY_DEFAULT = ("forward-only", "distmm-pipe")  # another amount of work, and another kind of model


@dataclass(frozen=True)
class Compared:
    """What is compared.

    Attributes:
        timelines: by name, or by the path of a file.
        microbatches: of each of them.
        left_out: why others are not among them.
    """

    timelines: dict[str, "ScheduleTimeline"]
    microbatches: dict[str, int]
    left_out: dict[str, str]

    def sorted_by(self, number: str) -> "Compared":
        """The same with the smallest of a number of the timelines first."""
        ordered = sorted(self.timelines.items(), key=lambda entry: float(getattr(entry[1], number)))
        return replace(self, timelines=dict(ordered))


def compared(
    subjects: Sequence[str],
    counts: Counts,
    model: Model,
    memory: float | None = None,
    nano_batches: int | None = None,
) -> Compared:
    """Simulate the subjects, or without any all that train a chain of stages; with nano-batches, too, if asked.

    Raises:
        ScheduleError: there is no schedule of a name, a file is not wholly a schedule, or nothing is left to compare.
        click.UsageError: there is no such file, or an option that no schedule takes.
    """
    from annopipe.scheduling.library import entry

    subjects = subjects or [name for name in ap.schedules() if name not in _NOT_BY_DEFAULT]
    # Names first: one that is not there is a slip of the pen, not a schedule to leave out.
    names = dict.fromkeys(subject if is_file(subject) else entry(subject).name for subject in subjects)
    of_files = replace(counts, microbatches=None) if counts.placement else Counts()
    files = {name: load(name, of_files) for name in names if is_file(name)}
    for name, file in files.items():
        warn_of_unknown_operations(name, file, model)
    counts = _completed(counts, list(files.values()))
    takes = {name: {option for option, _ in entry(name).options} for name in names if name not in files}
    for option in counts.options:
        if not counts.placement and not any(option in options for options in takes.values()):
            raise click.UsageError(f"--{option}: none of these schedules has that choice")
    found = Compared({}, {}, {})
    for name in names:
        with doing(f"simulating {name}"):
            schedule = _schedule(name, files.get(name), counts, model, takes.get(name, ()))
            _add(found, name, schedule, model, memory)
            if nano_batches is not None and name in found.timelines and not isinstance(schedule, str):
                chosen = with_nano_batches(schedule, nano_batches, model, memory)
                same = chosen.programs == schedule.programs and chosen.nano_batching is not None
                _add(found, f"{name} with nano-batches", _reason(chosen) if same else chosen, model, memory)
    if not found.timelines:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.left_out.items())
        raise ap.ScheduleError(f"nothing is left to compare: {reasons}")
    return found


def _add(found: Compared, name: str, schedule: "Schedule | str", model: Model, memory: float | None) -> None:
    """Put a schedule in, or the reason why there is none."""
    timeline = schedule if isinstance(schedule, str) else _timeline(schedule, model, memory)
    if isinstance(schedule, str) or isinstance(timeline, str):
        found.left_out[name] = str(timeline)
    else:
        found.timelines[name], found.microbatches[name] = timeline, schedule.microbatches


def _reason(schedule: "Schedule") -> str:
    return schedule.nano_batching.reason if schedule.nano_batching is not None else ""


def _completed(counts: Counts, files: Sequence["Schedule"]) -> Counts:
    """Names beside files have the counts of the first file, unless the command line says else."""
    if not files:
        if counts.placement is not None:
            raise click.UsageError("--placement is for files: name one")
        return counts
    ranks, microbatches = files[0].placement.ranks, files[0].microbatches
    return replace(counts, ranks=counts.ranks or ranks, microbatches=counts.microbatches or microbatches)


def _schedule(
    name: str, file: "Schedule | None", counts: Counts, model: Model, takes: Collection[str]
) -> "Schedule | str":
    """The file's schedule or the named one, with the options that it takes; or why there is none to simulate."""
    try:
        if file is not None:
            file.check()
            return file
        others = {option: None for option in counts.options if option not in takes}
        return load(name, replace(counts, placement=None, **others), model)
    except (ap.ScheduleError, ap.CostError) as error:
        return str(error).splitlines()[0].removeprefix(f"{name}: ")


def _timeline(schedule: "Schedule", model: Model, memory: float | None) -> "ScheduleTimeline | str":
    """The timeline, or why there is none: costs that do not fit the schedule's stages, or memory above the limit."""
    from annopipe.simulation.wording import amount_text

    try:
        timeline = ap.simulate(schedule, model.of(schedule.placement))
    except ap.CostError as error:
        return str(error)
    peak = timeline.peak_memory  # computed while the user is told what is going on
    if memory is not None and peak > memory * (1 + _ROUNDING):
        return f"its peak memory is {amount_text(peak)}, and the limit {amount_text(memory)}"
    return timeline
