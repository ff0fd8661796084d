"""The overlap job's table of times: every case and order."""

from typing import Any

from tabulate import tabulate

from benchmarks.pair.wording import graph_text, label_of, milliseconds, routing_text, run_text

__all__ = ["table"]

_HEADERS = (
    "blocks",
    "routing",
    "graph",
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
_OF_CASES = 3  # so many columns are left out where all cases have the same: the lines before the table say it
_LEGEND = (
    "spread: fastest to slowest round, ms; simulated: ms; ms/bound: over the lower bound;\n"
    "of sequential: over the same graphs one after the other; hidden: share of the communication"
)
_NETWORKS = {
    "namespaces": "network namespaces, one rate-limited medium",
    "emulated": "emulated network",
    "loopback": "loopback, not limited",
    "nccl": "NCCL",
    "pinned": "copies through pinned host memory",
}


def table(results: list[dict[str, Any]]) -> str:
    """One table for all cases, with a line about each before it."""
    lines = []
    rows: list[tuple[Any, ...]] = []
    for result in results:
        case = result["case"]
        equal = "all results bitwise equal to eager" if result["bitwise_equal"] else f"WRONG RESULTS: {result['wrong']}"
        parts = {"computation": "computation_s", "communication": "communication_s", "lower bound": "bound_s"}
        times = ", ".join(f"{name} {milliseconds(result[field])} ms" for name, field in parts.items())
        lines.append(
            f"{result['ranks']} ranks, {run_text(case)}, {routing_text(case)} routing, {_network(case)}, "
            f"{label_of(result)}: {times}; {_loads(result)}; {equal}"
        )
        rows += _rows(result)
    columns = [
        column for column in range(len(_HEADERS)) if column >= _OF_CASES or len({row[column] for row in rows}) > 1
    ]
    shown = [[row[column] for column in columns] for row in rows]
    heads = [_HEADERS[column] for column in columns]
    return "\n".join([*lines, "", tabulate(shown, headers=heads, disable_numparse=True), _LEGEND])


def _loads(result: dict[str, Any]) -> str:
    """How unevenly tokens are spread: the most that an expert, and a rank, gets in one block, over the mean."""
    ranks = result["ranks"]
    by_expert, by_rank = 0.0, 0.0
    for loads in result["expert_loads"]:
        local, total = len(loads) // ranks, sum(loads)
        by_expert = max(by_expert, max(loads) * len(loads) / total)
        by_rank = max(by_rank, max(sum(loads[r * local : (r + 1) * local]) for r in range(ranks)) * ranks / total)
    return f"tokens of the busiest expert {by_expert:.2f} times the mean, of the busiest rank {by_rank:.2f}"


def _network(case: dict[str, Any]) -> str:
    limited = case["network"] in ("namespaces", "emulated")
    return _NETWORKS[case["network"]] + (f" of {case['rate_bytes_per_s'] / 1e6:g} MB/s" if limited else "")


def _rows(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    case = result["case"]
    sequential = next((row["measured_s"] for row in result["rows"] if row["name"] == "sequential"), None)
    return [
        (
            case["blocks"],
            routing_text(case),
            graph_text(case),
            label_of(result),
            row["name"],
            milliseconds(row["measured_s"]),
            f"{milliseconds(row['fastest_s'])}-{milliseconds(row['slowest_s'])}",
            milliseconds(row["simulated_s"]),
            _ratio(row["measured_s"], row["simulated_s"]),
            _ratio(row["measured_s"], result["bound_s"]),
            _ratio(row["measured_s"], sequential),
            "" if row["hidden_share"] is None else f"{row['hidden_share']:.0%}",
        )
        for row in result["rows"]
    ]


def _ratio(seconds: float, reference: float | None) -> str:
    return "" if not reference else f"{seconds / reference:.3f}"
