"""How the overlap job's tables word a case's times, its routing and its seconds."""

from typing import Any

__all__ = ["graph_text", "label", "label_of", "milliseconds", "routing_text", "run_text"]


def label(case: dict[str, Any], ranks: int = 1, cores: int = 1) -> str:
    """How a case's times were obtained: paced, measured, or of no meaning; emulated if the network was."""
    kind = "paced" if case["paced"] else "measured"
    if not case["paced"] and ranks > cores:
        kind = "more ranks than cores"
    return f"{kind}, emulated" if case["network"] == "emulated" else kind


def label_of(result: dict[str, Any]) -> str:
    """The same for a case's result."""
    return label(result["case"], result["ranks"], result["cores"])


def routing_text(case: dict[str, Any]) -> str:
    """The routing of a case, with its exponent if it is skewed.

    >>> routing_text({"routing": "skewed", "skew": 1.0})
    'skewed 1'
    """
    return f"skewed {case['skew']:g}" if case["routing"] == "skewed" else str(case["routing"])


def graph_text(case: dict[str, Any]) -> str:
    """What runs together, and in how many nano-batches what part of it.

    >>> graph_text({"graph": "forward", "nano_batches": 2, "nano_batched": "moe"})
    'forward, moe in 2'
    """
    lanes = case["nano_batches"]
    return case["graph"] + (f", {case['nano_batched']} in {lanes}" if lanes > 1 else "")


def run_text(case: dict[str, Any]) -> str:
    """The blocks of a case, and its graph where that is no plain pair.

    >>> run_text({"graph": "pair", "nano_batches": 1, "blocks": 2})
    '2 blocks'
    """
    graph = graph_text(case)
    return f"{case['blocks']} blocks" + ("" if graph == "pair" else f", {graph}")


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds with one digit; nothing for None."""
    return "" if seconds is None else f"{seconds * 1e3:.1f}"
