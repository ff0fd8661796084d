"""Tables of the phases of steps with nano-batches, beside the same steps without."""

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from benchmarks.moe.tables import milliseconds
from benchmarks.moe.variant import Variant

__all__ = ["phase_tables"]

_HEADERS = (
    *("phase", "ms without", "simulated", "ms/simulated", "ms with", "simulated", "ms/simulated"),
    *("exposed without", "exposed with", "hidden"),
)


def phase_tables(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table for each variant with nano-batches: its phases without and with them, ranks added up."""
    found = []
    for entry in entries:
        rows = [_phase(phase["phase"], [phase]) for phase in entry["phases"]]
        alone = [phase for phase in entry["phases"] if phase["phase"] != "steady state"]
        rows.append(_phase("warm-up and cool-down", alone))
        exposed = sum(phase["before"]["exposed_s"] for phase in alone)
        bound = ""
        if exposed:
            share = max(0.0, 1.0 - entry["least_exposed_s"] / exposed)
            bound = f"\nmicrobatches that run alone, as nano-batches, can hide at most {share:.0%} of that"
            bound += "; those beside a W, or two together, more"
        own = Variant.from_plain(entry["variant"])
        about = f"{own}, beside {own.without(nano_batches=1)}: {entry['reason']}"
        found.append(f"{about}\n{tabulate(rows, headers=_HEADERS, disable_numparse=True)}{bound}")
    return found


def _phase(name: str, phases: Sequence[Mapping[str, Any]]) -> list[str]:
    before, after = (
        {
            what: sum(phase[when][what] for phase in phases)
            for what in ("measured_s", "simulated_s", "exposed_s", "hidden_s")
        }
        for when in ("before", "after")
    )
    times = [
        cell
        for own in (before, after)
        for cell in (
            milliseconds(own["measured_s"]),
            milliseconds(own["simulated_s"]),
            _ratio(own["measured_s"], own["simulated_s"]),
        )
    ]
    hidden = f"{1.0 - after['exposed_s'] / before['exposed_s']:.0%}" if before["exposed_s"] else ""
    return [name, *times, milliseconds(before["exposed_s"]), milliseconds(after["exposed_s"]), hidden]


def _ratio(measured_s: float, simulated_s: float) -> str:
    return f"{measured_s / simulated_s:.3f}" if simulated_s else ""
