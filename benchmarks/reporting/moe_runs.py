"""What `annopipe bench moe` writes, as cases with rows of times: what of it two runs can be compared by."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.moe.headline import median_s
from benchmarks.moe.variant import Variant

__all__ = ["is_moe", "moe_cases"]

_NO_MATTER = ("found", "left_out")  # results, and sentences about them


def is_moe(data: Any) -> bool:
    """Whether a file's data are those of the MoE job."""
    return isinstance(data, Mapping) and data.get("benchmark") == "moe"


def moe_cases(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A case for each configuration that has rows which were measured."""
    for name, about in data["configs"].items():
        rows = [_row(row) for row in data["rows"] if row["config"] == name and row["measured"] is not None]
        if rows:
            settings = {key: value for key, value in about.items() if key not in _NO_MATTER}
            yield {"case": {"config": name, **settings}, "rows": rows}


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    times, predicted = row["measured"]["seconds"], row["predicted"]
    return {
        "name": str(Variant.from_plain(row)),
        "measured_s": median_s(row),
        "fastest_s": min(times),
        "slowest_s": max(times),
        "times_s": times,
        "simulated_s": None if predicted is None else predicted["seconds"],
    }
