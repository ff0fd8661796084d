"""The door to the picture room: matplotlib is imported when something is drawn, and said to be missing where it is."""

import importlib
from os import PathLike, fspath
from types import ModuleType

from annopipe.errors import AnnopipeError

__all__ = ["drawing_module", "painter"]


def painter(name: str, path: str | PathLike[str]) -> ModuleType:
    """The module of the package `picture` that draws; `path` is what is about to be drawn.

    Raises AnnopipeError when matplotlib is not installed.
    """
    return drawing_module(f"annopipe.simulation.picture.{name}", path, "write HTML, which needs nothing")


def drawing_module(module: str, path: str | PathLike[str], instead: str) -> ModuleType:
    """A module that imports matplotlib; `instead` is what to do without.

    Raises AnnopipeError when matplotlib is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise AnnopipeError(
            f"cannot draw {fspath(path)}: matplotlib is not installed; run `pip install 'annopipe[plots]'`, "
            f"or {instead}"
        ) from error
