"""The table of a configuration of the MoE job: every row, measured beside predicted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from benchmarks.moe.headline import median_s
from benchmarks.moe.variant import Variant
from benchmarks.moe_page.quantities import bytes_text
from benchmarks.reporting.comparison import ranking
from benchmarks.reporting.runs import Measurement

__all__ = ["milliseconds", "rows_table"]

Row = Mapping[str, Any]


def rows_table(rows: Sequence[Row]) -> str:
    """The rows; columns in which no row says anything are left out."""
    places = _places(rows)
    cells = [{**_names(row), **_numbers(row), "place": places.get(Variant.from_plain(row), "")} for row in rows]
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
        "ms": milliseconds(median_s(row)) if times else "",
        "spread": f"{milliseconds(min(times))}-{milliseconds(max(times))}" if times else "",
        "predicted": milliseconds(predicted["seconds"]) if predicted else "",
        "ms/predicted": f"{median_s(row) / predicted['seconds']:.3f}" if both else "",
        "bound": milliseconds(predicted["bound_seconds"]) if predicted else "",
        "exposed": _text(milliseconds, measured, "exposed_seconds"),
        "exposed, predicted": _text(milliseconds, predicted, "exposed_seconds"),
        "bubble": f"{predicted['bubble']:.0%}" if predicted else "",
        "peak": _text(bytes_text, measured, "peak_bytes"),
        "peak, predicted": _text(bytes_text, predicted, "peak_bytes"),
        "place": "",
    }


def _text(write: Callable[[float], str], found: Row | None, name: str) -> str:
    """A number, where it is known."""
    return "" if found is None or found[name] is None else write(found[name])


def _places(rows: Iterable[Row]) -> dict[Variant, str]:
    """By their times: what does not differ by more than the spread shares a place."""
    found: dict[Variant, str] = {}
    for skew in dict.fromkeys(row["skew"] for row in rows):
        times = {str(Variant.from_plain(row)): row for row in rows if row["measured"] and row["skew"] == skew}
        own = [
            Measurement(name, median_s(row), min(seconds), max(seconds), None, len(seconds))
            for name, row in times.items()
            for seconds in [row["measured"]["seconds"]]
        ]
        found |= {Variant.from_plain(times[one.name]): str(place) for place, one in ranking(own)}
    return found


def _seconds(row: Row) -> float | None:
    if row["measured"]:
        return median_s(row)
    return None if row["predicted"] is None else float(row["predicted"]["seconds"])


def _eager_s(other: Row, row: Row) -> float | None:
    """The time of another row, if that is an eager one to compare with: of the same skew, and known in the same way."""
    alike = other["skew"] == row["skew"] and bool(other["measured"]) == bool(row["measured"])
    return _seconds(other) if other["runtime"] == "eager" and alike else None


def milliseconds(seconds: float) -> str:
    """As tables have them.

    >>> milliseconds(0.25)
    '250.0'
    """
    return f"{seconds * 1e3:.1f}"
