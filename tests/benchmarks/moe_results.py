"""Results as `annopipe bench moe` gives them, small and made up, for the tests of its page."""

from typing import Any

import annopipe as ap

__all__ = ["bars", "results", "row"]


def row(schedule: str, *seconds: float, **changes: Any) -> dict[str, Any]:
    """A row with so many rounds, simulated as the first of them, or as 1 s; changes are keys of the row."""
    simulated = seconds[0] if seconds else 1.0
    measured = {"kind": "paced", "seconds": list(seconds), "exposed_seconds": 0.25, "peak_bytes": None}
    return {
        "config": "tiny",
        "runtime": "annopipe",
        "schedule": schedule,
        "policy": "auto",
        "nano_batches": 1,
        "compile": False,
        "skew": 1.0,
        "pp": 2,
        "ep": 2,
        "dp": 1,
        "measured": measured if seconds else None,
        "predicted": {
            "seconds": simulated,
            "exposed_seconds": 0.2,
            "peak_bytes": 3 * 2**30,
            "bound_seconds": 0.8 * simulated,
        },
        "why_missing": None if seconds else "only simulated",
        "timeline": None,
        **changes,
    }


def bars(schedule: str, ranks: int, microbatches: int) -> list[list[Any]]:
    """The timeline of a simulated schedule, with a transfer below each action."""
    timeline = ap.simulate(ap.schedule(schedule, ranks, microbatches), ap.costs.table(F=1e-3, B=2e-3))
    found: list[list[Any]] = []
    for rank, spans in enumerate(timeline.spans):
        for span in spans:
            found.append([rank, "compute", span.start, span.end, span.text])
            found.append([rank, "communication", span.start, span.end, f"dispatch of {span.text}"])
    return found


def results(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A run of some rows, or of ours beside two eager ones; changes are keys of the run."""
    eager = {"runtime": "eager", "policy": None, "predicted": None, "why_missing": "eager is not simulated"}
    given = list(rows) or [
        row("dualpipev", 0.10, 0.11, 0.12, timeline=bars("dualpipev", 2, 4)),
        row("dualpipev", 0.08, 0.09, 0.10, nano_batches=2),
        row("zbv", 0.20, 0.21, 0.22, **eager),
        row("dualpipev", 0.17, 0.18, 0.19, **eager),
        row("zbv", config="deepseek-v3-671b", pp=16, ep=8),
    ]
    return {
        "benchmark": "moe",
        "command": "annopipe bench moe --html out",
        "environment": {"torch": "2.13.0", "cores": 2, "network": {"rate": "100mbit"}},
        "rows": given,
        "headline": {"asked": 1.5, "found": 2.0, "chain": [["graphs over eager", 1.25], ["nano-batches", 1.6]]},
        "talk": [["DualPipe", 1.7, 1.31, "paced"], ["zero bubble", "+7%", None, "simulated"]],
        **changes,
    }
