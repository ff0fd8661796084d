"""Workloads in TOML: ``[[workload]]`` tables whose fields are those of ``Workload``, layers as inline tables.

[[workload]]
name = "small"
ranks = 4
microbatches = 8
layers = [{ repeat = 8, F = 1.0, I = 1.0, W = 1.0, activation = 1.0 }]
"""

import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from annopipe.errors import CostError
from annopipe.tuning.layers import Layer, Recompute

__all__ = ["read_workloads"]

_LAYER = {field.name: field for field in dataclasses.fields(Layer)}
_RECOMPUTE = [field.name for field in dataclasses.fields(Recompute)]


def read_workloads(path: str | PathLike[str], fields: Collection[str]) -> dict[str, dict[str, Any]]:
    """The arguments of each workload of a file, by name, in the order of the file.

    Args:
        path: of the file.
        fields: what a workload has.

    Raises CostError for what is no workload: a field that is not known, or is missing, or a name that is there twice.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CostError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CostError(f"{path} is not TOML: {error}") from error
    _only(data, ["workload"], str(path))
    found: dict[str, dict[str, Any]] = {}
    for table in _several(data.get("workload", ()), f"{path}: workload"):
        where = f"{path}: workload {_table(table, f'{path}: workload').get('name', len(found))!r}"
        _only(table, fields, where)
        for name in ("name", "ranks", "microbatches", "layers"):
            if name not in table:
                raise CostError(f"{where} has no {name}: give it")
        if not isinstance(table["name"], str) or table["name"] in found:
            raise CostError(f"{where}: give each workload a name of its own")
        found[table["name"]] = _arguments(table, where)
    if not found:
        raise CostError(f"{path} has no workload: write [[workload]] and its fields under it")
    return found


def _arguments(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = dict(table)
    found["layers"] = _layers(table["layers"], f"{where}, layers")
    if "towers" in table:
        towers = _several(table["towers"], f"{where}, towers")
        found["towers"] = tuple(_layers(tower, f"{where}, tower {index}") for index, tower in enumerate(towers))
    if "speed" in table:
        found["speed"] = tuple(_several(table["speed"], f"{where}, speed"))
    return found


def _layers(entries: object, where: str) -> tuple[Layer, ...]:
    found: list[Layer] = []
    for entry in _several(entries, where):
        given = dict(_table(entry, where))
        _only(given, ["repeat", *_LAYER], where)
        times = given.pop("repeat", 1)
        if type(times) is not int or times < 1:
            raise CostError(f"{where}: repeat={times!r}: give a whole number, 1 or more")
        missing = [name for name in ("F", "I", "W") if name not in given]
        if missing:
            raise CostError(f"{where}: a layer has no {missing[0]}: give its time")
        if "recompute" in given:
            given["recompute"] = _recompute(given["recompute"], f"{where}, recompute")
        found += [Layer(**given)] * times
    return tuple(found)


def _recompute(given: object, where: str) -> Recompute:
    table = _table(given, where)
    _only(table, _RECOMPUTE, where)
    if len(table) < len(_RECOMPUTE):
        raise CostError(f"{where}: give both {' and '.join(_RECOMPUTE)}")
    return Recompute(**table)


def _only(table: Mapping[str, Any], known: Collection[str], where: str) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise CostError(f"{where} has no field {unknown[0]!r}; it has {', '.join(known)}")


def _several(given: object, where: str) -> Sequence[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise CostError(f"{where} is {given!r}: give a list")
    return given


def _table(given: object, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise CostError(f"{where} is {given!r}: give a table of fields")
    return given
