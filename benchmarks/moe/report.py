"""The MoE job's text: a table for each configuration, the headline with its chain, and the talk's numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from benchmarks.moe.phases import phase_tables
from benchmarks.moe.tables import milliseconds, rows_table
from benchmarks.moe.variant import Variant
from benchmarks.moe_page.quantities import bytes_text

__all__ = ["report"]

Row = Mapping[str, Any]
_NETWORKS = {
    "namespaces": "network namespaces, a medium of {rate} for each expert group",
    "emulated": "emulated all-to-alls, {rate} for each expert group",
    "loopback": "loopback, not limited",
}
_KINDS = {"paced": "paced", "real": "measured", "simulated": "simulated"}


def report(results: Mapping[str, Any]) -> str:
    """Everything that a run has found."""
    parts = []
    for name, about in results["configs"].items():
        rows = [row for row in results["rows"] if row["config"] == name]
        if any(row["measured"] or row["predicted"] for row in rows):
            parts.append("\n".join([*_about(name, about), rows_table(rows), *_notes(rows, about)]))
            parts += phase_tables(about.get("found", {}).get("nano_batches", []))
        else:
            parts.append(f"{name}: not reached")
    parts += map(_headline, results["headlines"])
    if results["talk"]:
        parts.append(_talk(results["talk"]))
    if results["interrupted"]:
        parts.append("interrupted: what was done until then")
    return "\n\n".join(parts)


def _about(name: str, about: Mapping[str, Any]) -> list[str]:
    degrees = f"PP {about['pp']} x EP {about['ep']}" + (f" x DP {about['dp']}" if about["dp"] > 1 else "")
    title = f"{name}: {_KINDS[about['kind']]}, {degrees}, {about['microbatches']} microbatches"
    if about["kind"] == "simulated":
        cluster = about["cluster"].get("machine") or about["cluster"]["file"]
        return [f"{title}; {about['model']['name']}, layers traced and priced by roofline for {cluster}"]
    found = about["found"]
    rate = f"{about['network_rate_bytes_per_s'] / 1e6:g} MB/s"
    shown = [f"all-to-all {milliseconds(found['transfer_s'])} ms"]
    if about["kind"] == "paced":
        shown.append(f"stretch of computation {milliseconds(found['stretch_s'])} ms")
    if found["sum_s"]:
        shown.append(f"sum of gradients {milliseconds(found['sum_s'])} ms")
    if "gradients_differ" in found:
        shown.append("gradients agree" if not found["gradients_differ"] else _differing(found["gradients_differ"]))
    return [f"{title}; {_NETWORKS[found['network']].format(rate=rate)}", "; ".join(shown)]


def _differing(wrong: Mapping[str, Sequence[str]]) -> str:
    return "GRADIENTS DIFFER: " + ", ".join(
        f"{step} ({names[0]} and {len(names) - 1} more)" for step, names in wrong.items()
    )


def _notes(rows: Sequence[Row], about: Mapping[str, Any]) -> list[str]:
    """Why something is missing, each reason once; and what of the lists was not run."""
    missing: dict[str, list[str]] = {}
    for row in rows:
        if row["why_missing"] and (row["measured"] is None or row["predicted"] is None):
            missing.setdefault(row["why_missing"], []).append(str(Variant.from_plain(row)))
    said = [
        f"{why}{'' if len(names) == len(rows) else f' ({len(names)} rows: {names[0]}, ...)'}"
        for why, names in missing.items()
    ]
    if any(row["measured"] is not None and row["skew"] != 1.0 for row in rows):
        said.append("skew: ranks with fewer rows wait for the busiest: exposed as measured; only that one is simulated")
    if "memory_bytes" in about:
        said += _too_large(rows, about["memory_bytes"])
    return [*said, *about["left_out"]]


def _too_large(rows: Sequence[Row], memory: float) -> list[str]:
    """What a device could not hold; schedules are compared by time alone, as none computes again what it could keep."""
    count = sum(row["predicted"] is not None and row["predicted"]["peak_bytes"] > memory for row in rows)
    if not count:
        return []
    over = f"{count} of {len(rows)} rows hold more than the {bytes_text(memory)} of a device"
    return [f"{over}: nothing is computed again here; annopipe tune finds what fits"]


def _headline(headline: Mapping[str, Any]) -> str:
    cells = [(text, f"{ratio:.3f}") for text, ratio in headline["chain"]]
    cells.append(("the whole", f"{headline['found']:.3f}"))
    about = (
        f"{headline['config']}, whole step: {headline['by']} is {headline['found']:.2f} times as fast as "
        f"{headline['of']}, the best eager schedule of the run (asked: {headline['asked']:g}; slowest round of ours "
        f"beside the fastest of that: {headline['least']:.2f})"
    )
    return f"{about}\n{tabulate(cells, headers=('what changes', 'times as fast'), disable_numparse=True)}"


def _talk(rows: Sequence[Sequence[Any]]) -> str:
    cells = [(name, f"{published:.2f}", f"{found:.2f}", how) for name, published, found, how in rows]
    about = "Published for 64 H100 and a DeepSeek-style model (talk of the PyTorch team), beside what this run found:"
    return f"{about}\n{tabulate(cells, headers=('gain', 'published', 'found', 'how'), disable_numparse=True)}"
