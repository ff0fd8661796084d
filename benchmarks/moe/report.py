"""The MoE job's table: every runtime and schedule, measured beside simulated."""

from typing import Any

from tabulate import tabulate

from benchmarks.moe.case import MoeCase

__all__ = ["table"]

_HEADERS = (
    *("runtime", "schedule", "ms", "spread", "simulated", "ms/simulated", "bubble"),
    *("over eager", "over best eager"),
)
_NANO_HEADERS = (
    *("phase", "ms without", "simulated", "ms/simulated", "ms with", "simulated", "ms/simulated"),
    *("exposed without", "exposed with", "hidden"),
)
_NETWORKS = {
    "namespaces": "network namespaces, a medium of {rate:g} MB/s for each expert group",
    "emulated": "emulated all-to-alls, {rate:g} MB/s for each expert group",
    "loopback": "loopback, not limited",
}


def table(results: list[dict[str, Any]]) -> str:
    """A table for each case, with two lines before it."""
    return "\n\n".join("\n\n".join([f"{_about(result)}\n{_rows(result)}", *_nano(result)]) for result in results)


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


def _nano(result: dict[str, Any]) -> list[str]:
    """A table for each schedule that ran with nano-batches, too: its phases without and with them, ranks added up."""
    found = []
    for entry in result["nano_batches"]:
        rows = [_phase(phase["phase"], [phase]) for phase in entry["phases"]]
        alone = [phase for phase in entry["phases"] if phase["phase"] != "steady state"]
        rows.append(_phase("warm-up and cool-down", alone))
        exposed = sum(phase["before"]["exposed_s"] for phase in alone)
        bound = ""
        if exposed:
            share = max(0.0, 1.0 - entry["least_exposed_s"] / exposed)
            bound = f"\nmicrobatches that run alone, as nano-batches, can hide at most {share:.0%} of that"
        about = f"{entry['with']} beside {entry['schedule']}: {entry['reason']}"
        found.append(f"{about}\n{tabulate(rows, headers=_NANO_HEADERS, disable_numparse=True)}{bound}")
    return found


def _phase(name: str, phases: list[dict[str, Any]]) -> list[str]:
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
        for cell in (_ms(own["measured_s"]), _ms(own["simulated_s"]), _ratio(own["measured_s"], own["simulated_s"]))
    ]
    hidden = f"{1.0 - after['exposed_s'] / before['exposed_s']:.0%}" if before["exposed_s"] else ""
    return [name, *times, _ms(before["exposed_s"]), _ms(after["exposed_s"]), hidden]


def _ratio(measured_s: float, simulated_s: float) -> str:
    return f"{measured_s / simulated_s:.3f}" if simulated_s else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
