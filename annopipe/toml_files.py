"""Reading TOML, on every Python; what goes wrong in a file is an error of the caller's kind that names it."""

import sys
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from annopipe.errors import AnnopipeError

__all__ = ["parse_toml", "read_toml", "refuse_unknown"]


def parse_toml(text: str) -> dict[str, Any]:
    """What a text holds.

    Raises ValueError for a text that is not TOML.

    >>> parse_toml("ranks = 2")
    {'ranks': 2}
    """
    return tomllib.loads(text)


def read_toml(path: str | PathLike[str], kind: type[AnnopipeError]) -> dict[str, Any]:
    """What a file holds.

    Raises an error of the kind for a file that cannot be read or is not TOML.
    """
    try:
        return parse_toml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise kind(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise kind(f"{path} is not TOML: {error}") from error


def refuse_unknown(table: Mapping[str, Any], known: Collection[str], where: str, kind: type[AnnopipeError]) -> None:
    """Raise an error of the kind for a field that is not known.

    >>> refuse_unknown({"ranks": 2}, ["ranks", "layers"], "small.toml", AnnopipeError)
    """
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise kind(f"{where} has no field {unknown[0]!r}; it has {', '.join(known)}")
