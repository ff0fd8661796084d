"""Workloads in TOML: ``[[workload]]`` tables whose fields are those of ``Workload``, layers as inline tables.

[[workload]]
name = "small"
ranks = 4
microbatches = 8
layers = [{ repeat = 8, F = 1.0, I = 1.0, W = 1.0, activation = 1.0 }]
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from typing import Any

from annopipe.errors import CostError
from annopipe.toml_files import read_toml, refuse_unknown, toml_value
from annopipe.tuning.layer_files import layer_from, layer_table
from annopipe.tuning.layers import Layer

__all__ = ["read_workloads", "workload_text"]

_MOST_LAYERS = 100_000


def read_workloads(path: str | PathLike[str], fields: Collection[str]) -> dict[str, dict[str, Any]]:
    """The arguments of each workload of a file, by name, in the order of the file.

    Args:
        path: of the file.
        fields: what a workload has.

    Raises CostError for what is no workload: a field that is not known, or is missing, or a name that is there twice.
    """
    data = read_toml(path, CostError)
    refuse_unknown(data, ["workload"], str(path), CostError)
    found: dict[str, dict[str, Any]] = {}
    for table in _several(data.get("workload", ()), f"{path}: workload"):
        where = f"{path}: workload {_table(table, f'{path}: workload').get('name', len(found))!r}"
        refuse_unknown(table, fields, where, CostError)
        for name in ("name", "ranks", "microbatches", "layers"):
            if name not in table:
                raise CostError(f"{where} has no {name}: give it")
        if not isinstance(table["name"], str) or table["name"] in found:
            raise CostError(f"{where}: give each workload a name of its own")
        found[table["name"]] = _arguments(table, where)
    if not found:
        raise CostError(f"{path} has no workload: write [[workload]] and its fields under it")
    return found


def workload_text(fields: Mapping[str, Any]) -> str:
    """One ``[[workload]]`` table."""
    lines = ["[[workload]]"]
    for name, value in fields.items():
        if name == "layers":
            lines += ["layers = [", *(f"  {each}," for each in _written(value)), "]"]
        elif name == "towers":
            lines += ["towers = [", *(f"  [{', '.join(_written(tower))}]," for tower in value), "]"]
        else:
            lines.append(f"{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def _written(layers: Sequence[Layer]) -> list[str]:
    """Layers as inline tables, equal neighbours as one."""
    found = []
    for layer, alike in itertools.groupby(layers):
        count = len(list(alike))
        found.append(toml_value({**({"repeat": count} if count > 1 else {}), **layer_table(layer)}))
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
        times = given.pop("repeat", 1)
        if type(times) is not int or not 1 <= times <= _MOST_LAYERS:
            raise CostError(f"{where}: repeat={times!r}: give a whole number, 1 to {_MOST_LAYERS}")
        found += [layer_from(given, where)] * times
    return tuple(found)


def _several(given: object, where: str) -> Sequence[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise CostError(f"{where} is {given!r}: give a list")
    return given


def _table(given: object, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise CostError(f"{where} is {given!r}: give a table of fields")
    return given
