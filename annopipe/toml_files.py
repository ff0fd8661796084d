"""Reading TOML, on every Python, and writing it; what goes wrong in a file is an error of the caller's kind."""

import json
import re
import sys
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from annopipe.errors import AnnopipeError

__all__ = ["parse_toml", "read_toml", "refuse_unknown", "toml_text", "toml_value"]


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
    except (ValueError, RecursionError) as error:
        raise kind(f"{path} is not TOML: {error}") from error


def refuse_unknown(table: Mapping[str, Any], known: Collection[str], where: str, kind: type[AnnopipeError]) -> None:
    """Raise an error of the kind for a field that is not known.

    >>> refuse_unknown({"ranks": 2}, ["ranks", "layers"], "small.toml", AnnopipeError)
    """
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise kind(f"{where} has no field {unknown[0]!r}; it has {', '.join(known)}")


def toml_text(table: Mapping[str, Any], name: str = "") -> str:
    """A table as TOML; entries that are None are left out.

    >>> print(toml_text({"ranks": 2, "link": {"rate": 1e9, "name": None}}), end="")
    ranks = 2
    <BLANKLINE>
    [link]
    rate = 1000000000.0
    """
    plain = {key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {toml_value(value)}\n" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = f"{name}.{_key(key)}" if name else _key(key)
            lines.append(f"\n[{inner}]\n{toml_text(value, inner)}")
    return "".join(lines)


def toml_value(value: object) -> str:
    """A string, number, list or inline table as TOML writes it.

    >>> print(toml_value(["two words", 1, True, {"F": 0.5}]))
    ["two words", 1, true, { F = 0.5 }]
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (tuple, list, frozenset)):
        entries = sorted(value) if isinstance(value, frozenset) else value
        return f"[{', '.join(map(toml_value, entries))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {toml_value(entry)}' for key, entry in value.items())} }}"
    if isinstance(value, Real):  # other kinds of numbers, such as numpy's, have a repr of their own
        return repr(int(value) if isinstance(value, Integral) else float(value))
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)
