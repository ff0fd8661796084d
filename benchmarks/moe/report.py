"""The MoE job's table: every runtime and schedule, measured beside simulated."""

from typing import Any

from tabulate import tabulate

from benchmarks.moe.case import MoeCase

__all__ = ["table"]

_HEADERS = (
    *("runtime", "schedule", "ms", "spread", "simulated", "ms/simulated", "bubble"),
    *("over eager", "over best eager"),
)
_NETWORKS = {
    "namespaces": "network namespaces, a medium of {rate:g} MB/s for each expert group",
    "emulated": "emulated all-to-alls, {rate:g} MB/s for each expert group",
    "loopback": "loopback, not limited",
}


def table(results: list[dict[str, Any]]) -> str:
    """A table for each case, with two lines before it."""
    return "\n\n".join(f"{_about(result)}\n{_rows(result)}" for result in results)


def _about(result: dict[str, Any]) -> str:
    case = MoeCase.from_result(result)
    network = _NETWORKS[case.network].format(rate=case.rate_bytes_per_s / 1e6)
    shown = [f"all-to-all {_ms(result['transfer_s'])} ms"]
    if case.paced:
        shown.append(f"stretch of computation {_ms(result['stretch_s'])} ms")
    equal = "gradients agree" if result["gradients_agree"] else _differing(result["gradients_differ"])
    return f"{case.title}; {network}\n{', '.join(shown)}; {equal}"


def _differing(wrong: dict[str, list[str]]) -> str:
    return "GRADIENTS DIFFER: " + ", ".join(
        f"{step} ({names[0]} and {len(names) - 1} more)" for step, names in wrong.items()
    )


def _rows(result: dict[str, Any]) -> str:
    own = {row["schedule"]: row["measured_s"] for row in result["rows"] if row["runtime"] == "eager"}
    rows = [
        (
            row["runtime"],
            row["schedule"],
            _ms(row["measured_s"]),
            f"{_ms(row['fastest_s'])}-{_ms(row['slowest_s'])}",
            "" if row["simulated_s"] is None else _ms(row["simulated_s"]),
            "" if row["simulated_s"] is None else f"{row['measured_s'] / row['simulated_s']:.3f}",
            "" if row["bubble"] is None else f"{row['bubble']:.0%}",
            f"{own[row['schedule']] / row['measured_s']:.2f}x" if row["schedule"] in own else "",
            f"{min(own.values()) / row['measured_s']:.2f}x" if own else "",
        )
        for row in result["rows"]
    ]
    return tabulate(rows, headers=_HEADERS, disable_numparse=True)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
