"""Writing the page and its pictures into a folder; what cannot be is refused before anything is drawn."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from annopipe.errors import AnnopipeError
from annopipe.simulation.files import refuse_unwritable, write_text
from annopipe.simulation.pictures import drawing_module
from benchmarks.moe_page.page import page
from benchmarks.moe_page.quantities import QUANTITIES
from benchmarks.moe_page.results import Results

__all__ = ["write_page", "write_page_of"]

_LONGEST = 60  # letters of a configuration's name in the names of its pictures


def write_page(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write page.html, which needs nothing else, and the pictures in it as PNG; returns their paths, the page first.

    Raises AnnopipeError, before anything is written, if matplotlib is missing, the folder cannot be written to, or
    these are no results of `annopipe bench moe`.

    >>> write_page({"benchmark": "overlap"}, Path("page"))
    Traceback (most recent call last):
    annopipe.errors.AnnopipeError: these are results of benchmark 'overlap': a page is made of what ...
    """
    return _write(Results.of(results), folder)


def write_page_of(path: Path, folder: Path) -> list[Path]:
    """The same, of the file that `annopipe bench moe --json` wrote."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AnnopipeError(f"cannot read a run from {path}: {error}") from error
    try:
        results = Results.of(data)
    except AnnopipeError as error:
        raise AnnopipeError(f"{path}: {error}") from error
    return _write(results, folder)


def _write(results: Results, folder: Path) -> list[Path]:
    charts = drawing_module("benchmarks.moe_page.charts", folder, "leave out the page: tables and JSON need nothing")
    configurations = results.configurations()
    stems = _stems(configurations)
    place = folder / "page.html"
    wanted = {
        name: [(quantity, folder / f"{stem}_{quantity.stem}.png") for quantity in QUANTITIES]
        for name, stem in stems.items()
    }
    for path in (place, *(path for those in wanted.values() for _, path in those)):
        refuse_unwritable(path)
    pictures = {
        name: [
            path
            for quantity, path in those
            if charts.save(path, configurations[name], quantity, f"{name}: {quantity.title.lower()}")
        ]
        for name, those in wanted.items()
    }
    write_text(place, page(results, pictures))
    return [place, *(path for those in pictures.values() for path in those)]


def _stems(names: Iterable[str]) -> dict[str, str]:
    """For each name one that any file may have, and no other has.

    >>> _stems(["deepseek-v3-16b", "../a b", "a-b"])
    {'deepseek-v3-16b': 'deepseek-v3-16b', '../a b': 'a-b', 'a-b': 'a-b-2'}
    """
    found: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:_LONGEST] or "configuration"
        number, free = 1, stem
        while free in found.values():
            number += 1
            free = f"{stem}-{number}"
        found[name] = free
    return found
