"""Schedules as a PNG picture, as papers draw them; needs matplotlib (extra `plots`).

The package `annopipe.simulation.picture` draws and imports matplotlib; it is loaded when something is drawn.
"""

from collections.abc import Mapping
from os import PathLike

from annopipe.simulation.pictures import painter
from annopipe.simulation.ranks.pictured import Pictured

__all__ = ["write"]


def write(path: str | PathLike[str], timelines: Mapping[str, Pictured], title: str = "annopipe schedule") -> None:
    """Draw schedules below each other on one time axis: a row of boxes per rank, and the memory of the ranks.

    A box has its microbatch's number where that fits, and the critical path is outlined. A schedule with more spans
    than can be told apart is drawn in the mixed colours of what runs.

    Raises AnnopipeError when matplotlib is not installed or the file cannot be written.

    >>> import pathlib, tempfile
    >>> import annopipe as ap
    >>> schedule = ap.Schedule.of(ap.placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> timeline = ap.simulate(schedule, ap.costs.table(F=1.0, B=2.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pictures", "schedule.png")
    ...     write(path, {"naive": timeline}, "one microbatch")
    ...     path.read_bytes()[1:4]
    b'PNG'
    """
    painter("pipeline", path).save(path, timelines, title)
