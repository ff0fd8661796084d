"""``RunConfig``: the TOML that names a schedule, its placement, a policy and the layers of each stage.

microbatches = 8
policy = "auto"
schedule = "schedule.csv"          # beside this file
layers = [[0, 4], [4, 8]]          # of each stage: the first one, and the one behind the last

[placement]
rank_of = [0, 1]
edges = [[0, 1]]

[degrees]                          # how devices are shared out, where that was searched; for whoever makes the groups
ranks = 2
data = 4
expert = 2
microbatch_size = 1
"""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from annopipe.errors import CostError, PipelineError
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.schedule_class import Schedule
from annopipe.simulation.files import place_for, refuse_unwritable
from annopipe.toml_files import read_toml, refuse_unknown, toml_text, toml_value
from annopipe.tuning.degrees import Degrees

__all__ = ["RunConfig"]

_PLACEMENT = ("rank_of", "edges", "weights_of", "copy_of", "batch_wide", "name")


@dataclass(frozen=True)
class RunConfig:
    """How a model is run: plain data, to be saved and loaded.

    Attributes:
        schedule: the order of actions on every rank.
        layers: for each stage its first layer and the one behind its last, counted over all chains of the model; ()
            says nothing.
        recomputed: for each stage, how many of its layers compute again what they can; () is none of any.
        policy: how combined graphs are ordered.
        degrees: for whoever makes the process groups and the microbatches; a pipeline has the ranks of its schedule.
    """

    schedule: Schedule
    layers: tuple[tuple[int, int], ...] = ()
    recomputed: tuple[int, ...] = ()
    policy: str = "auto"
    degrees: Degrees | None = None

    def save(self, path: str | PathLike[str]) -> None:
        """Write the TOML, and the schedule as CSV of the same name beside it.

        Raises PipelineError for a name that does not end in ".toml", AnnopipeError when a file cannot be written.
        """
        target = Path(path)
        if target.suffix != ".toml":
            raise PipelineError(
                f"{path} does not end in .toml, and the schedule goes into a file of the same name with .csv: save as "
                f"{target.name}.toml"
            )
        refuse_unwritable(target)
        table = target.with_suffix(".csv")
        self.schedule.to_csv(table)
        placement = self.schedule.placement
        lines = [
            f"microbatches = {self.schedule.microbatches}",
            f"policy = {toml_value(self.policy)}",
            f"schedule = {toml_value(table.name)}",
            f"layers = {toml_value(self.layers)}",
            f"recomputed = {toml_value(self.recomputed)}",
            "",
            "[placement]",
            *(f"{name} = {toml_value(getattr(placement, name))}" for name in _PLACEMENT),
        ]
        if self.degrees is not None:
            lines += ["", toml_text({"degrees": dataclasses.asdict(self.degrees)}).strip()]
        with place_for(target) as place:
            place.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "RunConfig":
        """Read what `save` wrote, or somebody by hand.

        Raises PipelineError for a file that cannot be read or has unknown fields, ScheduleError for a schedule that is
        none.

        >>> import pathlib, tempfile
        >>> from annopipe.scheduling.library import schedule
        >>> config = RunConfig(schedule("dualpipe", ranks=2, microbatches=4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     config.save(pathlib.Path(folder, "run.toml"))
        ...     RunConfig.load(pathlib.Path(folder, "run.toml")) == config
        True
        """
        data = read_toml(path, PipelineError)
        known = ["microbatches", "placement", *(field.name for field in fields(cls))]
        refuse_unknown(data, known, str(path), PipelineError)
        for name in ("schedule", "placement", "microbatches"):
            if name not in data:
                raise PipelineError(f"{path} has no {name}: give it")
        placement = _placement(data["placement"], f"{path}, placement")
        table = Path(path).parent / str(data["schedule"])
        schedule = Schedule.from_csv(table, placement, microbatches=data["microbatches"], name=placement.name)
        return cls(
            schedule,
            tuple((start, end) for start, end in _whole(data.get("layers", []), f"{path}, layers", 2)),
            tuple(_whole(data.get("recomputed", []), f"{path}, recomputed", 1)),
            _policy(data.get("policy", "auto"), str(path)),
            _degrees(data["degrees"], f"{path}, degrees") if "degrees" in data else None,
        )


def _placement(given: object, where: str) -> Placement:
    if not isinstance(given, Mapping):
        raise PipelineError(f"{where} is {given!r}: give a table with rank_of")
    refuse_unknown(given, _PLACEMENT, where, PipelineError)
    rank_of = _whole(given.get("rank_of", []), f"{where}, rank_of", 1)
    stages = range(len(rank_of))
    edges = _whole(given["edges"], f"{where}, edges", 2) if "edges" in given else [*itertools.pairwise(stages)]
    return Placement(
        tuple(rank_of),
        tuple((start, end) for start, end in edges),
        tuple(_whole(given.get("weights_of", [*stages]), f"{where}, weights_of", 1)),
        tuple(_whole(given.get("copy_of", [0] * len(rank_of)), f"{where}, copy_of", 1)),
        frozenset(_whole(given.get("batch_wide", []), f"{where}, batch_wide", 1)),
        str(given.get("name", "custom")),
    )


def _degrees(given: object, where: str) -> Degrees:
    known = [field.name for field in fields(Degrees)]
    if not isinstance(given, Mapping):
        raise PipelineError(f"{where} is {given!r}: give a table with {', '.join(known)}")
    refuse_unknown(given, known, where, PipelineError)
    if "ranks" not in given:
        raise PipelineError(f"{where} has no ranks: give it")
    try:
        return Degrees(**given)
    except CostError as error:
        raise PipelineError(f"{where}: {error}") from error


def _whole(given: object, where: str, width: int) -> list[Any]:
    """A list of whole numbers, or of tuples of so many of them."""
    entries = given if isinstance(given, list) else [None]
    for entry in entries:
        numbers = entry if width > 1 and isinstance(entry, list) else [entry]
        if len(numbers) != width or any(type(number) is not int for number in numbers):
            what = "whole numbers" if width == 1 else f"lists of {width} whole numbers"
            raise PipelineError(f"{where} is {given!r}: give a list of {what}")
    return entries


def _policy(given: object, where: str) -> str:
    if not isinstance(given, str):
        raise PipelineError(f"{where}: policy is {given!r}: give its name, or a pattern")
    return given
