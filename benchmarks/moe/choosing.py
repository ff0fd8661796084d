"""From the command's options to configurations: which ones, and what of them is changed."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from annopipe.errors import AnnopipeError
from benchmarks.moe.config import SHIPPED, Config

__all__ = ["chosen_configs"]

_QUICK = ("quick", "deepseek-v3-16b")
_FIELDS = {
    "pipeline_ranks": "pp",
    "expert_ranks": "ep",
    "data_ranks": "dp",
    "microbatches": "microbatches",
    "schedules": "schedules",
    "eager": "eager",
    "policies": "policies",
    "nano_batches": "nano_batches",
    "skew": "skew",
}
_TABLES = {"ratio": ("model", "ratio"), "rate": ("network", "rate"), "network": ("network", "kind")}
_EVERYWHERE = ("rounds", "network")  # these can be changed in all shipped configurations at once


def chosen_configs(options: Mapping[str, Any]) -> list[Config]:
    """The configurations to run.

    Raises AnnopipeError for changes when no configuration is named, CostError for what they cannot be changed to.
    """
    given = {name: value for name, value in options.items() if value not in (None, (), False)}
    names, quick = given.pop("configs", ()), given.pop("quick", False)
    if names and quick:
        raise AnnopipeError("--quick has configurations of its own: leave it out, or --config")
    changes = sorted(set(given) - set(_EVERYWHERE))
    if changes and not names:
        raise AnnopipeError(
            f"--{changes[0].replace('_', '-')} changes a configuration: name it, as in --config tiny; there are quick, "
            f"{', '.join(SHIPPED)}"
        )
    if len(set(names)) < len(names):
        raise AnnopipeError(f"--config names something twice: {', '.join(names)}")
    found = [_changed(Config.named(name), given) for name in (names or (_QUICK if quick else SHIPPED))]
    alike = [config.name for config in found]
    if len(set(alike)) < len(alike):
        raise AnnopipeError(f"two configurations have the same name: {', '.join(alike)}: rename a file")
    return [_shortened(config) for config in found] if quick else found


def _changed(config: Config, given: Mapping[str, Any]) -> Config:
    changes: dict[str, Any] = {field: given[name] for name, field in _FIELDS.items() if name in given}
    if "attached" in given:
        changes["attached"] = True
    if "rounds" in given and config.kind != "simulated":
        changes["rounds"] = given["rounds"]
    if "schedules" in changes and config.nano_batched is not None:
        changes["nano_batched"] = tuple(name for name in config.nano_batched if name in changes["schedules"]) or None
    if "eager" in changes and changes["eager"] == ("none",):
        changes["eager"] = ()
    if "skew" in changes:
        changes["skew"] = tuple(dict.fromkeys((1.0, *changes["skew"])))
    if "nano_batches" in changes:
        changes["nano_batches"] = tuple(dict.fromkeys((1, *changes["nano_batches"])))
    for name, (table, key) in _TABLES.items():
        if name in given and not (name == "network" and config.kind == "simulated"):
            changes[table] = {**changes.get(table, getattr(config, table)), key: given[name]}
    return dataclasses.replace(config, **changes)


def _shortened(config: Config) -> Config:
    """What a quick run has of a simulated model: the rows of the talk's numbers."""
    if config.kind != "simulated":
        return config
    return dataclasses.replace(config, skew=(1.0,), nano_batches=(1,), nano_batched=None)
