"""Timelines as a PNG picture, for a report or a chat where no browser is at hand; needs matplotlib (extra `plots`).

The package `picture` beside this file draws and imports matplotlib; it is loaded when something is drawn.
"""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING

from annopipe.simulation.pictures import painter

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["write"]


def write(
    path: str | PathLike[str], timelines: Mapping[str, "ProgramTimeline"], title: str = "annopipe timeline"
) -> None:
    """Draw timelines below each other on one time axis: the issuing thread and each process group, stalls, host reads.

    Raises AnnopipeError when matplotlib is not installed or the file cannot be written.

    >>> import pathlib, tempfile
    >>> from annopipe.simulation import Task, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "timeline.png")
    ...     write(path, {"list": run([Task("mm", "compute", 1.0)])}, "one product")
    ...     path.read_bytes()[1:4]
    b'PNG'
    """
    painter("figure", path).save(path, timelines, title)
