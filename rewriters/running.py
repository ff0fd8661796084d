"""Rewrite many files, over processes; nothing is written here."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from annopipe.errors import RewriteError
from annopipe.processors import processors
from rewriters.engine import FileResult, check_settings, rewrite
from rewriters.patches import collect
from rewriters.settings import Settings

__all__ = ["run"]

_FEW = 4  # files for which starting processes does not pay


def run(paths: Sequence[Path], settings: Settings, jobs: int | None = None) -> Iterator[FileResult]:
    """What becomes of each file, in the order of ``paths``.

    Args:
        jobs: processes; None: one per core.

    Raises:
        RewriteError: the settings make no sense.
    """
    check_settings(settings)
    if settings.wants("AP404"):
        settings = dataclasses.replace(settings, patches=collect(_bytes(paths)))
    work = functools.partial(_one, settings=settings)
    jobs = min(jobs or processors(), len(paths))
    if jobs == 1 or len(paths) < _FEW:
        yield from map(work, paths)
        return
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, paths, chunksize=1)


def _one(path: Path, settings: Settings) -> FileResult:
    try:
        data = path.read_bytes()
    except OSError as error:
        return FileResult(str(path), b"", b"", (), f"cannot be read: {error.strerror or error}")
    return rewrite(data, settings, path.as_posix())


def _bytes(paths: Sequence[Path]) -> dict[str, bytes]:
    try:
        return {str(path): path.read_bytes() for path in paths}
    except OSError as error:
        raise RewriteError(f"{error.filename} cannot be read: {error.strerror or error}") from error
