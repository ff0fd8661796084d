"""The files of a run: found, read, and written whole or not at all."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from annopipe.errors import RewriteError
from rewriters.settings import fits

__all__ = ["find", "write"]

_NO_SOURCE = {"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"}


def find(paths: Iterable[Path], exclude: Sequence[str] = ()) -> list[Path]:
    """The Python files at and below ``paths``; hidden folders and those of tools are left out unless they are named.

    Raises:
        RewriteError: a path that is not there.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise RewriteError(f"no such file or folder: {path}")
        for file in _below(path) if path.is_dir() else (path,):
            if not any(fits(file.as_posix(), pattern) for pattern in exclude):
                found.setdefault(file, None)
    return list(found)


def _below(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            if entry.name not in _NO_SOURCE and not entry.name.startswith(".") and not entry.is_symlink():
                yield from _below(entry)
        elif entry.suffix == ".py":
            yield entry


def write(path: Path, before: bytes, after: bytes) -> None:
    """Replace a file's bytes at once; links are followed, permissions kept.

    Raises:
        RewriteError: somebody has changed the file since it was read, or it cannot be written.
    """
    target = path.resolve()
    try:
        if target.read_bytes() != before:
            raise RewriteError(f"{path} has changed since it was read: run again")
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(after)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(target.stat().st_mode & 0o7777)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RewriteError(f"{path} cannot be written: {error.strerror or error}") from error
