"""Costs of actions on a command line: a short text, or a file with the arguments of ``ap.costs.table``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import annopipe as ap

if TYPE_CHECKING:
    from annopipe.scheduling.action_costs import ActionCosts

__all__ = ["CostsType"]

_TABLES = ("exposed", "operations")
_SUFFIXES = (".toml", ".json")


class CostsType(click.ParamType[Any]):
    """Costs: ``F=1,I=1,send=0.1``, which is the inside of a table of TOML, or the path of a TOML or JSON file."""

    name = "costs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "ActionCosts":
        """Read the costs; what is wrong is said with the option's name."""
        try:
            return _costs(_arguments(value))
        except (ValueError, OSError) as error:  # CostError and all errors of reading and parsing among them
            reason = error.strerror if isinstance(error, OSError) else error
            self.fail(f"{value!r}: {reason}", param, ctx)


def _arguments(text: str) -> dict[str, Any]:
    if text.lower().endswith(_SUFFIXES):
        content = Path(text).read_text(encoding="utf-8")
        found = json.loads(content) if text.lower().endswith(".json") else _toml(content)
        if not isinstance(found, dict):
            raise ValueError("write one object, with the arguments of ap.costs.table as names")
        return found
    try:
        document = _toml(f"costs = {{{text}}}")
    except ValueError:
        document = {}
    # A line break could end the table and begin something else.
    if set(document) != {"costs"} or not document["costs"]:
        raise ValueError(
            "write NAME=NUMBER with commas between, as F=1,I=1,W=0.5,send=0.1 (a digit before and after the point, each "
            "name once); one number per stage as F=[1,2]; exposed={F=0.1}; or the path of a .toml or .json file"
        )
    found = document["costs"]
    return dict(found)


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _costs(arguments: dict[str, Any]) -> "ActionCosts":
    for name in _TABLES:
        if not isinstance(arguments.get(name, {}), dict):
            raise ap.CostError(f"{name} is {arguments[name]!r}: give a table, as {name}={{NAME=0.1}}")
    return ap.costs.table(**arguments)
