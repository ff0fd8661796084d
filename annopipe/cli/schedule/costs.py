"""Costs of actions on a command line: a short text, or a file with the arguments of ``ap.costs.table``."""

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import annopipe as ap
from annopipe.toml_files import parse_toml

if TYPE_CHECKING:
    from annopipe.scheduling.action_costs import ActionCosts

__all__ = ["costs_text", "plain_costs", "read_costs"]

_TABLES = ("exposed", "operations", "lanes", "communication")
_ALWAYS_SAID = ("F", "I", "W", "send", "latency", "activation")
_SYNTAX = (
    "write NAME=NUMBER with commas between, as F=1,I=1,W=0.5,send=0.1 (each name once, a digit before and after a "
    "point); one number per stage as F=[1,2]; exposed={F=0.1}; or the path of a .toml or .json file"
)


def read_costs(_ctx: click.Context, param: click.Parameter, value: str | None) -> "ActionCosts | None":
    """What --costs says: ``F=1,I=1,send=0.1``, which is the inside of a table of TOML, or the path of a file.

    Raises click.BadParameter for what cannot be read, or is no cost.
    """
    if value is None:
        return None
    try:
        return _costs(_arguments(value))
    except (ValueError, OSError) as error:  # ValueError: CostError, and what parsers raise
        reason = error.strerror if isinstance(error, OSError) else error
        place = f"{value}: " if _is_path(value) else ""
        raise click.BadParameter(f"{place}{reason}", param=param) from error


def costs_text(costs: "ActionCosts") -> str:
    """The numbers that say most, and those that are not usual.

    >>> from annopipe.scheduling.action_costs import table
    >>> costs_text(table(W=0.5, FB=2.0))
    'F=1, I=1, W=0.5, FB=2, send=0, latency=0, activation=1'
    """
    usual = plain_costs(ap.costs.table())
    given = plain_costs(costs)
    said = [name for name in given if name in _ALWAYS_SAID or given[name] != usual[name]]
    return ", ".join(f"{name}={_short(given[name])}" for name in said)


def plain_costs(costs: "ActionCosts") -> dict[str, Any]:
    """The costs as arguments of ``ap.costs.table``, without functions, which no command line gives."""
    found = {field.name: getattr(costs, field.name) for field in fields(costs)}
    return {name: value for name, value in found.items() if not callable(value)}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _is_path(text: str) -> bool:
    return text.lower().endswith((".toml", ".json"))


def _arguments(text: str) -> dict[str, Any]:
    if _is_path(text):
        content = Path(text).read_text(encoding="utf-8")
        found = json.loads(content) if text.lower().endswith(".json") else parse_toml(content)
        if not isinstance(found, dict):
            raise ValueError("write one object, with the arguments of ap.costs.table as names")
        return found
    try:
        found = parse_toml(f"costs = {{{text}}}")
    except ValueError:
        found = {}
    # A line break could end the table and begin something else, and a comment hide the rest.
    if not found.get("costs") or set(text) & {"\n", "#"}:
        raise ValueError(f"{text!r}: {_SYNTAX}")
    return dict(found["costs"])


def _costs(arguments: dict[str, Any]) -> "ActionCosts":
    for name in _TABLES:
        if not isinstance(arguments.get(name, {}), dict):
            raise ap.CostError(f"{name} is {arguments[name]!r}: give a table, as {name}={{NAME=0.1}}")
    return ap.costs.table(**arguments)
