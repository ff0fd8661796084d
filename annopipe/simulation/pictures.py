"""The door to the picture room: matplotlib is imported when something is drawn, and said to be missing where it is."""

import importlib
from os import PathLike, fspath
from types import ModuleType

from annopipe.errors import AnnopipeError

__all__ = ["painter"]


def painter(name: str, path: str | PathLike[str]) -> ModuleType:
    """The module of the package `picture` that draws; `path` is what is about to be drawn.

    Raises AnnopipeError when matplotlib is not installed.
    """
    try:
        return importlib.import_module(f"annopipe.simulation.picture.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise AnnopipeError(
            f"cannot draw {fspath(path)}: matplotlib is not installed; run `pip install 'annopipe[plots]'`, "
            "or write HTML, which needs nothing"
        ) from error
