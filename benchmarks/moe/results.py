"""The results of a run as they grow: rows of plain data, which are there from the start and are filled in."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from annopipe.processors import processors
from benchmarks.moe.config import Config
from benchmarks.moe.grid import Grid
from benchmarks.moe.headline import headlines
from benchmarks.moe.talk import talk_rows
from benchmarks.moe.variant import SEQUENTIAL, Variant

__all__ = ["Results", "Rows"]

Rows = Mapping[Variant, dict[str, Any]]
_NOT_REACHED = "the run ended before this"


class Results:
    """What a run has found so far.

    Args:
        configs: what it runs, in order, with the rows of each.
        command: that made them.

    Attributes:
        ended: the code with which the process ends, where it was interrupted; else 0.
    """

    def __init__(self, configs: Iterable[tuple[Config, Grid]], command: str = "") -> None:
        self.command = command
        self.environment: dict[str, Any] = _environment()
        self.configs: dict[str, dict[str, Any]] = {}
        self._rows: dict[str, Rows] = {}
        self.ended = 0
        for config, own in configs:
            self.configs[config.name] = {**_settings(config), "left_out": list(own.left_out)}
            self._rows[config.name] = {variant: _row(config, variant) for variant in own.variants}

    def rows(self, config: Config) -> Rows:
        """Of a configuration, by variant, to be filled in."""
        return self._rows[config.name]

    def _networks(self) -> dict[str, str]:
        """What carried messages, by configuration."""
        ran = {name: about["found"]["network"] for name, about in self.configs.items() if "found" in about}
        rates = {name: self.configs[name]["network_rate_bytes_per_s"] for name in ran}
        return {name: f"{kind}, {rates[name] / 1e6:g} MB/s for each expert group" for name, kind in ran.items()}

    def plain(self) -> dict[str, Any]:
        """Everything, as JSON can say it."""
        rows = [_finished(row) for own in self._rows.values() for row in own.values()]
        _keep_timelines(rows)
        found = headlines(rows, self.configs)
        return {
            "benchmark": "moe",
            "command": self.command,
            "environment": {**self.environment, "network": self._networks()},
            "interrupted": self.ended != 0,
            "configs": self.configs,
            "rows": rows,
            "headline": found[0] if found else None,
            "headlines": found,
            "talk": talk_rows(rows, self.configs),
        }


def _environment() -> dict[str, Any]:
    return {
        "annopipe": version("annopipe"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": processors(),
        "load": round(os.getloadavg()[0], 2),
    }


def _settings(config: Config) -> dict[str, Any]:
    """What has to be equal for two runs of a configuration to be compared."""
    same = ("kind", "pp", "ep", "dp", "microbatches", "rounds", "model", "network", "cluster")
    found = {name: value for name in same if (value := getattr(config, name)) != {}}
    if config.kind == "simulated":
        found["memory_bytes"] = config.cluster_of().memory
    else:
        found["network_rate_bytes_per_s"] = config.case("loopback").rate_bytes_per_s
    return found


def _row(config: Config, variant: Variant) -> dict[str, Any]:
    return {
        "config": config.name,
        **variant.plain(),
        "pp": config.pp,
        "ep": config.ep,
        "dp": config.dp,
        "measured": None,
        "predicted": None,
        "why_missing": _NOT_REACHED,
        "timeline": None,
    }


def _finished(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with nothing half done, and no reason for what is there."""
    found = dict(row)
    if found["measured"] is not None and not found["measured"]["seconds"]:
        found["measured"] = None
    if found["measured"] is not None and found["predicted"] is not None:
        found["why_missing"] = ""
    return found


def _keep_timelines(rows: Sequence[dict[str, Any]]) -> None:
    """Drop the timelines of all rows but eager ones, pairs that are reordered, and the winner: files stay small."""
    fastest: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["timeline"] is None or row["skew"] != 1.0:
            continue
        best = fastest.setdefault(row["config"], row)
        if row["predicted"]["seconds"] < best["predicted"]["seconds"]:
            fastest[row["config"]] = row
    for row in rows:
        reordered = row["policy"] not in (None, SEQUENTIAL) and row["nano_batches"] == 1 and not row["compile"]
        is_baseline = row["runtime"] == "eager" or reordered
        if row["skew"] != 1.0 or not (is_baseline or row is fastest.get(row["config"])):
            row["timeline"] = None
