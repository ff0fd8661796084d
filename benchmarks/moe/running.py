"""Run a configuration on processes of its own, in a network that is limited, and take in what it finds as it comes."""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from annopipe.errors import AnnopipeError
from annopipe.processors import processors
from benchmarks import netlab
from benchmarks.moe.case import MoeCase, NetworkKind
from benchmarks.moe.config import Config
from benchmarks.moe.results import Rows
from benchmarks.progress import result_of_ranks

__all__ = ["case_of", "lab_of", "measure", "network_of"]

_WORKER = "benchmarks.moe.worker"
_TIMEOUT_S = 3600.0


def network_of(config: Config) -> NetworkKind:
    """What carries the messages: what the configuration asks for, or the most real thing that this machine has."""
    asked = config.network.get("kind", "auto")
    if asked == "namespaces" and (reason := netlab.available()):
        raise AnnopipeError(f"no network namespaces here: {reason}; use --network emulated")
    if asked != "auto":
        found: NetworkKind = asked
        return found
    return "emulated" if netlab.available() else "namespaces"


def case_of(config: Config, rows: Rows) -> MoeCase:
    """What the ranks are given.

    Raises AnnopipeError for real computation with more ranks than cores, and for a network that is not there.
    """
    cores = processors()
    if config.kind == "real" and config.ranks > cores:
        raise config.error(
            f"real computation with {config.ranks} ranks on {cores} cores measures nothing: use fewer ranks"
        )
    case = config.case(network_of(config))
    try:
        return dataclasses.replace(case, variants=tuple(rows))
    except AnnopipeError as error:
        raise config.error(str(error)) from error


def lab_of(case: MoeCase) -> netlab.NetLab | None:
    """The network namespaces of a case, a medium for each expert group; None where it wants none."""
    if case.network != "namespaces":
        return None
    rate = f"{case.rate_bytes_per_s * 8 / 1e3:.0f}kbit"
    return netlab.NetLab(case.ranks, rate, shared=True, media=case.pipeline_ranks * case.data_ranks)


def measure(case: MoeCase, rows: Rows, about: dict[str, Any], progress: Callable[[str], None]) -> None:
    """Run all variants of a case, and fill in their rows, and what was measured of the network, into ``about``."""
    in_order = list(rows.values())

    def part(text: str) -> None:
        found = json.loads(text)
        if "predicted" in found:
            for row, own in zip(in_order, found.pop("predicted"), strict=True):
                row["measured"] = {"kind": case.kind, "seconds": [], "exposed_seconds": None, "peak_bytes": None}
                row["timeline"] = own.pop("timeline", None)
                row["predicted"] = own or None
            about["found"] = {"network": case.network, **found}
        elif "seconds" in found:
            in_order[found["variant"]]["measured"]["seconds"].append(found["seconds"])
        else:
            in_order[found.pop("variant")]["measured"] |= found

    with lab_of(case) or contextlib.nullcontext() as lab:
        last = result_of_ranks(
            _WORKER, case.ranks, [case.to_json()], lab=lab, timeout_s=_TIMEOUT_S, progress=progress, part=part
        )
    about["found"] |= json.loads(last)
