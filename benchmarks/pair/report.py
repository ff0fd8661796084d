"""The overlap job's table."""

from typing import Any

from tabulate import tabulate

__all__ = ["label", "table"]

_HEADERS = (
    "blocks",
    "times",
    "order",
    "ms",
    "spread",
    "simulated",
    "ms/simulated",
    "ms/bound",
    "of sequential",
    "hidden, simulated",
)
_NETWORKS = {
    "namespaces": "network namespaces, one rate-limited medium",
    "emulated": "emulated network",
    "loopback": "loopback, not limited",
    "nccl": "NCCL",
    "pinned": "copies through pinned host memory",
}


def label(case: dict[str, Any], ranks: int = 1, cores: int = 1) -> str:
    """How a case's times were obtained: paced, measured, or of no meaning; emulated if the network was."""
    kind = "paced" if case["paced"] else "measured"
    if not case["paced"] and ranks > cores:
        kind = "more ranks than cores"
    return f"{kind}, emulated" if case["network"] == "emulated" else kind


def table(results: list[dict[str, Any]]) -> str:
    """One table for all cases, with a line about each before it."""
    lines = []
    rows: list[tuple[Any, ...]] = []
    for result in results:
        case = result["case"]
        equal = "all results bitwise equal to eager" if result["bitwise_equal"] else f"WRONG RESULTS: {result['wrong']}"
        lines.append(
            f"{result['ranks']} ranks, {case['blocks']} blocks, {_network(case)}, {_label(result)}: "
            f"computation {_ms(result['computation_s'])} ms, communication {_ms(result['communication_s'])} ms, "
            f"lower bound {_ms(result['bound_s'])} ms; {equal}"
        )
        rows += _rows(result)
    return "\n".join([*lines, "", tabulate(rows, headers=_HEADERS, disable_numparse=True, colalign=("right",) * 2)])


def _label(result: dict[str, Any]) -> str:
    return label(result["case"], result["ranks"], result["cores"])


def _network(case: dict[str, Any]) -> str:
    limited = case["network"] in ("namespaces", "emulated")
    return _NETWORKS[case["network"]] + (f" of {case['rate_bytes_per_s'] / 1e6:g} MB/s" if limited else "")


def _rows(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    case = result["case"]
    sequential = next((row["measured_s"] for row in result["rows"] if row["name"] == "sequential"), None)
    return [
        (
            case["blocks"],
            _label(result),
            row["name"],
            _ms(row["measured_s"]),
            f"{_ms(row['fastest_s'])}-{_ms(row['slowest_s'])}",
            _ms(row["simulated_s"]),
            _ratio(row["measured_s"], row["simulated_s"]),
            _ratio(row["measured_s"], result["bound_s"]),
            _ratio(row["measured_s"], sequential),
            "" if row["hidden_share"] is None else f"{row['hidden_share']:.0%}",
        )
        for row in result["rows"]
    ]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"


def _ratio(seconds: float, reference: float | None) -> str:
    return "" if not reference else f"{seconds / reference:.3f}"
