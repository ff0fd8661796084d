"""The overlap job's table of one graph alone with nano-batches, beside the same graph without.

Exposed is what a graph takes beyond its computation. The share that nano-batches hide is of what is exposed without
them in program order, as a graph without lanes runs in a pipeline.
"""

import dataclasses
from typing import Any

from tabulate import tabulate

from benchmarks.pair.wording import graph_text, label_of, milliseconds, routing_text

__all__ = ["Comparison", "comparisons", "key_of", "nano_table"]

_HEADERS = (
    *("blocks", "times", "routing", "graph", "order", "ms", "simulated", "ms/simulated", "exposed"),
    *("hidden of what is exposed without", "simulated", "of the whole, best order"),
)
_STEP = "step"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Times of one order of a graph with nano-batches, and of the same graph without, in seconds.

    graph: forward, backward, or step: the one and then the other.
    whole_s, whole_simulated_s: without nano-batches in program order.  best_whole_s: in the best order.
    reason: why this order, as its plan says.
    """

    result: dict[str, Any]
    graph: str
    order: str
    measured_s: float
    simulated_s: float
    computation_s: float
    whole_s: float
    whole_simulated_s: float
    best_whole_s: float
    reason: str = ""

    @property
    def exposed_s(self) -> float:
        """What is not computation."""
        return max(0.0, self.measured_s - self.computation_s)

    @property
    def hidden(self) -> float | None:
        """The share of what is exposed without nano-batches that they hide."""
        return _share(self.exposed_s, self.whole_s - self.computation_s)

    @property
    def hidden_simulated(self) -> float | None:
        """The same in simulation."""
        return _share(self.simulated_s - self.computation_s, self.whole_simulated_s - self.computation_s)


def key_of(case: dict[str, Any]) -> tuple[Any, ...]:
    """What cases with the same computation and the same tokens have in common."""
    return tuple(case[name] for name in ("graph", "blocks", "batch", "sequence", "paced", "routing", "ratio"))


def comparisons(results: list[dict[str, Any]]) -> list[Comparison]:
    """Every order of every graph that ran alone with nano-batches and without; a step where both its graphs did."""
    whole = {key_of(result["case"]): result for result in results if result["case"]["nano_batches"] == 1}
    found: list[Comparison] = []
    for result in results:
        case = result["case"]
        reference = whole.get(key_of(case))
        if case["nano_batches"] == 1 or case["graph"] == "pair" or reference is None:
            continue
        rows = {row["name"]: row for row in reference["rows"]}
        if "sequential" in rows:
            found += [_compared(result, row, reference, rows) for row in result["rows"] if row["simulated_s"]]
    return found + _steps(found)


def nano_table(results: list[dict[str, Any]]) -> str:
    """The table, and a line about every graph whose nano-batches lose; nothing when no graph ran both ways."""
    found = comparisons(results)
    if not found:
        return ""
    rows = []
    for x in found:
        case = x.result["case"]
        shares = ["" if share is None else f"{share:.0%}" for share in (x.hidden, x.hidden_simulated)]
        times = milliseconds(x.measured_s), milliseconds(x.simulated_s), f"{x.measured_s / x.simulated_s:.3f}"
        graph = graph_text({**case, "graph": x.graph})
        of_whole = f"{x.measured_s / x.best_whole_s:.3f}"
        rows.append(
            (
                *(case["blocks"], label_of(x.result), routing_text(case), graph, x.order),
                *(*times, milliseconds(x.exposed_s), *shares, of_whole),
            )
        )
    lines = ["one graph alone, with nano-batches", tabulate(rows, headers=_HEADERS, disable_numparse=True)]
    best: dict[tuple[Any, ...], Comparison] = {}
    for x in found:
        case = x.result["case"]
        key = (x.graph, *key_of(case)[1:], case["nano_batches"], case["nano_batched"])
        if key not in best or x.measured_s < best[key].measured_s:
            best[key] = x
    for x in best.values():
        if x.measured_s >= x.best_whole_s:
            lines.append(
                f"nano-batches lose: {graph_text({**x.result['case'], 'graph': x.graph})}, "
                f"{x.result['case']['blocks']} blocks: {milliseconds(x.measured_s)} ms at best, and "
                f"{milliseconds(x.best_whole_s)} without; leave nano_batches at 1 there"
                + (f" (plan: {x.reason})" if x.reason else "")
            )
    return "\n".join(lines)


def _compared(
    result: dict[str, Any], row: dict[str, Any], reference: dict[str, Any], whole: dict[str, dict[str, Any]]
) -> Comparison:
    return Comparison(
        result,
        result["case"]["graph"],
        row["name"],
        row["measured_s"],
        row["simulated_s"],
        reference["computation_s"],
        whole["sequential"]["measured_s"],
        whole["sequential"]["simulated_s"],
        min(other["measured_s"] for other in whole.values()),
        row.get("reason", ""),
    )


def _steps(found: list[Comparison]) -> list[Comparison]:
    """A forward and then its backward, both in the same order."""
    steps = []
    for forward in found:
        case = forward.result["case"]
        wanted = {**case, "graph": "backward"}
        for x in found:
            other = x.result["case"]
            lanes = all(other[name] == case[name] for name in ("nano_batches", "nano_batched"))
            if forward.graph == "forward" and key_of(other) == key_of(wanted) and lanes and x.order == forward.order:
                times = (getattr(forward, name) + getattr(x, name) for name in _TIMES)
                steps.append(Comparison(forward.result, _STEP, x.order, *times))
    return steps


_TIMES = ("measured_s", "simulated_s", "computation_s", "whole_s", "whole_simulated_s", "best_whole_s")


def _share(exposed: float, without: float) -> float | None:
    return 1 - max(0.0, exposed) / without if without > 0 else None
