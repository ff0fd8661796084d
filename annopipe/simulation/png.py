"""Timelines as a PNG picture, for a report or a chat where no browser is at hand; needs matplotlib (extra `plots`).

The package `picture` beside this file draws and imports matplotlib; it is loaded when something is drawn.
"""

import importlib
from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING

from annopipe.errors import AnnopipeError

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["write"]


def write(
    path: str | PathLike[str], timelines: Mapping[str, "ProgramTimeline"], title: str = "annopipe timeline"
) -> None:
    """Draw timelines below each other on one time axis: the issuing thread and each process group, stalls, host reads.

    Raises AnnopipeError when matplotlib is not installed.

    >>> import pathlib, tempfile
    >>> from annopipe.simulation import Task, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "timeline.png")
    ...     write(path, {"list": run([Task("mm", "compute", 1.0)])}, "one product")
    ...     path.read_bytes()[1:4]
    b'PNG'
    """
    try:
        figure = importlib.import_module("annopipe.simulation.picture.figure")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise AnnopipeError(
            f"cannot draw {fspath(path)}: matplotlib is not installed; run `pip install 'annopipe[plots]'`, "
            "or write HTML, which needs nothing"
        ) from error
    figure.save(path, timelines, title)
