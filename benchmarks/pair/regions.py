"""The overlap job's table of regions: what of their communication is hidden and exposed, routings side by side."""

from typing import Any

from tabulate import tabulate

from benchmarks.pair.wording import label_of, milliseconds, routing_text, run_text

__all__ = ["regions_table"]


def regions_table(results: list[dict[str, Any]]) -> str:
    """Communication of every region, hidden and exposed, with a group of columns for each routing.

    A part for each number of blocks and kind of times, of the order whose simulated times add up to least.
    """
    parts = []
    for same in _alike(results):
        order = min(same[0]["regions"], key=lambda name: sum(_simulated_s(result, name) for result in same))
        headers = ["lane", "region"]
        columns: dict[tuple[str, str], list[str]] = {}
        for number, result in enumerate(same):
            rows = result["regions"][order]
            total = {key: sum(row[key] for row in rows) for key in ("comm", "hidden", "exposed")}
            headers += [f"{routing_text(result['case'])}: ms", "hidden", "exposed"]
            for row in [*rows, {"lane": "", "region": "all", **total}]:
                cells = columns.setdefault((row["lane"], row["region"]), [""] * 3 * number)
                cells += [milliseconds(row["comm"]), *(_part(row[key], row["comm"]) for key in ("hidden", "exposed"))]
        case = same[0]["case"]
        parts.append(
            f"communication by region, order {order}, {run_text(case)}, {label_of(same[0])} costs, simulated\n"
            + tabulate([(*key, *cells) for key, cells in columns.items()], headers=headers, disable_numparse=True)
        )
    return "\n\n".join(parts)


def _alike(results: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The results of cases that differ in their routing only, case by case."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        case = result["case"]
        same = (case["blocks"], case["paced"], case["graph"], case["nano_batches"], case["nano_batched"])
        groups.setdefault(same, []).append(result)
    return list(groups.values())


def _simulated_s(result: dict[str, Any], order: str) -> float:
    return float(next(row["simulated_s"] for row in result["rows"] if row["name"] == order))


def _part(seconds: float, whole: float) -> str:
    return f"{milliseconds(seconds)} ({seconds / whole:.0%})" if whole else milliseconds(seconds)
