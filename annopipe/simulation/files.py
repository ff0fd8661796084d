"""Writing what was drawn: missing folders are made, and what goes wrong is said in one sentence."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path

from annopipe.errors import AnnopipeError

__all__ = ["place_for", "refuse_unwritable", "write_text"]


@contextmanager
def place_for(path: str | PathLike[str]) -> Iterator[Path]:
    """A path whose folder exists, to be written to inside the `with` block.

    Raises AnnopipeError when the folder cannot be made or the file not be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, place_for(f"{folder}/new/page.html") as path:
    ...     path.write_text("drawing")
    7
    """
    try:
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        yield place
    except OSError as error:
        reason = error.strerror or str(error)
        raise AnnopipeError(
            f"cannot write {fspath(path)}: {reason}; choose a file in a folder that can be written to"
        ) from error


def refuse_unwritable(path: str | PathLike[str]) -> None:
    """What can be said before there is anything to write, and without making folders.

    Raises AnnopipeError when a folder has that name, or nothing can be made where it would be.

    >>> refuse_unwritable("a/new/folder/page.html")
    """
    place = Path(path).absolute()
    nearest = next(folder for folder in place.parents if folder.exists())
    reason = ""
    if place.is_dir():
        reason = "it is a folder"
    elif not nearest.is_dir():
        reason = f"{nearest} is no folder"
    elif not os.access(place if place.exists() else nearest, os.W_OK):
        reason = "permission denied"
    if reason:
        raise AnnopipeError(f"cannot write {fspath(path)}: {reason}; choose a file in a folder that can be written to")


def write_text(path: str | PathLike[str], text: str) -> None:
    """Write a text as UTF-8; see `place_for`."""
    with place_for(path) as place:
        place.write_text(text, encoding="utf-8")
