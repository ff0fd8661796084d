"""The MoE job's text: a table for each configuration, the headline with its chain, and the talk's numbers."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from benchmarks.moe.headline import median_s
from benchmarks.moe.phases import phase_tables
from benchmarks.moe.variant import Variant
from benchmarks.reporting.comparison import ranking
from benchmarks.reporting.runs import Measurement

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
            parts.append("\n".join([*_about(name, about), _table(rows), *_notes(rows, about)]))
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
    shown = [f"all-to-all {_ms(found['transfer_s'])} ms"]
    if about["kind"] == "paced":
        shown.append(f"stretch of computation {_ms(found['stretch_s'])} ms")
    if found["sum_s"]:
        shown.append(f"sum of gradients {_ms(found['sum_s'])} ms")
    if "gradients_differ" in found:
        shown.append("gradients agree" if not found["gradients_differ"] else _differing(found["gradients_differ"]))
    return [f"{title}; {_NETWORKS[found['network']].format(rate=rate)}", "; ".join(shown)]


def _differing(wrong: Mapping[str, Sequence[str]]) -> str:
    return "GRADIENTS DIFFER: " + ", ".join(
        f"{step} ({names[0]} and {len(names) - 1} more)" for step, names in wrong.items()
    )


def _table(rows: Sequence[Row]) -> str:
    """The rows; columns in which no row says anything are left out."""
    places = _places(rows)
    cells = [{**_names(row), **_numbers(row), "place": places.get(_key(row), "")} for row in rows]
    for row, own in zip(rows, cells, strict=True):
        best = min((found for other in rows if (found := _eager_s(other, row)) is not None), default=None)
        seconds = _seconds(row)
        own["over best eager"] = "" if best is None or seconds is None else f"{best / seconds:.2f}x"
    heads = [head for head in cells[0] if any(own[head] for own in cells)]
    return tabulate([[own[head] for head in heads] for own in cells], headers=heads, disable_numparse=True)


def _names(row: Row) -> dict[str, str]:
    return {
        "runtime": row["runtime"],
        "schedule": row["schedule"],
        "policy": row["policy"] or "",
        "nano": f"/{row['nano_batches']}" if row["nano_batches"] > 1 else "",
        "compiled": "yes" if row["compile"] else "",
        "skew": f"{row['skew']:g}" if row["skew"] != 1.0 else "",
    }


def _numbers(row: Row) -> dict[str, str]:
    measured, predicted = row["measured"], row["predicted"]
    times = measured["seconds"] if measured else []
    both = bool(measured and predicted)
    return {
        "ms": _ms(statistics.median(times)) if times else "",
        "spread": f"{_ms(min(times))}-{_ms(max(times))}" if times else "",
        "predicted": _ms(predicted["seconds"]) if predicted else "",
        "ms/predicted": f"{statistics.median(times) / predicted['seconds']:.3f}" if both else "",
        "bound": _ms(predicted["bound_seconds"]) if predicted else "",
        "exposed": _ms(predicted["exposed_seconds"]) if predicted else "",
        "bubble": f"{predicted['bubble']:.0%}" if predicted else "",
        "peak": _bytes(predicted["peak_bytes"]) if predicted else "",
        "place": "",
    }


def _places(rows: Iterable[Row]) -> dict[Variant, str]:
    """By their times: what does not differ by more than the spread shares a place."""
    found: dict[Variant, str] = {}
    for skew in dict.fromkeys(row["skew"] for row in rows):
        times = {str(_key(row)): row for row in rows if row["measured"] and row["skew"] == skew}
        own = [
            Measurement(name, median_s(row), min(seconds), max(seconds), None, len(seconds))
            for name, row in times.items()
            for seconds in [row["measured"]["seconds"]]
        ]
        found |= {_key(times[one.name]): str(place) for place, one in ranking(own)}
    return found


def _key(row: Row) -> Variant:
    return Variant.from_plain(row)


def _seconds(row: Row) -> float | None:
    if row["measured"]:
        return median_s(row)
    return None if row["predicted"] is None else float(row["predicted"]["seconds"])


def _eager_s(other: Row, row: Row) -> float | None:
    """The time of another row, if that is an eager one to compare with: of the same skew, and known in the same way."""
    alike = other["skew"] == row["skew"] and bool(other["measured"]) == bool(row["measured"])
    return _seconds(other) if other["runtime"] == "eager" and alike else None


def _notes(rows: Sequence[Row], about: Mapping[str, Any]) -> list[str]:
    """Why something is missing, each reason once; and what of the lists was not run."""
    missing: dict[str, list[str]] = {}
    for row in rows:
        if row["why_missing"] and (row["measured"] is None or row["predicted"] is None):
            missing.setdefault(row["why_missing"], []).append(str(_key(row)))
    said = [
        f"{why}{'' if len(names) == len(rows) else f' ({len(names)} rows: {names[0]}, ...)'}"
        for why, names in missing.items()
    ]
    return [*said, *about["left_out"]]


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


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
