"""Writing what was drawn: missing folders are made, and what goes wrong is said in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path

from annopipe.errors import AnnopipeError

__all__ = ["place_for", "write_text"]


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


def write_text(path: str | PathLike[str], text: str) -> None:
    """Write a text as UTF-8; see `place_for`."""
    with place_for(path) as place:
        place.write_text(text, encoding="utf-8")
