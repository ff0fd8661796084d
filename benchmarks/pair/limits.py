"""The limits that annopipe sets itself for the overlap job, as data, and whether a run kept them.

They are for a quiet machine, communication equal to computation, the job's own model and its learned routing;
``--check`` compares. Runs with another routing are not judged; of graphs alone, what their nano-batches hide.
"""

import dataclasses
from typing import Any

from tabulate import tabulate

from benchmarks.pair.nano import comparisons
from benchmarks.pair.wording import run_text

__all__ = ["Limit", "judge", "limits_table"]

_ACCURACY = {2: 0.05, 4: 0.10}  # paced: ranks to the largest share by which measured may differ from simulated
_HIDDEN = 0.6
_OVER_BOUND = {  # paced: order to (blocks to the range of measured over lower bound)
    "sequential": dict.fromkeys((1, 2, 4), (1.9, 2.1)),
    "alternate": dict.fromkeys((1, 2, 4), (1.0, 1.25)),
    "list": {1: (1.0, 1.16), 2: (1.0, 1.10), 4: (1.0, 1.10)},
    "auto": {1: (1.0, 1.16), 2: (1.0, 1.10), 4: (1.0, 1.10)},
}


@dataclasses.dataclass(frozen=True)
class Limit:
    """One limit: for which run and order, what was found, and the range that it must lie in."""

    run: str
    order: str
    what: str
    found: float
    lowest: float
    highest: float

    @property
    def kept(self) -> bool:
        """Whether the value lies in the range."""
        return self.lowest <= self.found <= self.highest


def judge(results: list[dict[str, Any]]) -> list[Limit]:
    """Every limit that applies to these results."""
    judged = [result for result in results if result["case"]["routing"] == "learned"]
    limits = [limit for result in judged for limit in (_paced(result) if result["case"]["paced"] else _real(result))]
    return limits + _nano(judged)


def limits_table(limits: list[Limit]) -> str:
    """A table with a line per limit."""
    rows = [
        (x.run, x.order, x.what, f"{x.found:.3f}", f"{x.lowest:.2f} to {x.highest:.2f}", "kept" if x.kept else "MISSED")
        for x in limits
    ]
    return tabulate(rows, headers=("run", "order", "what", "found", "limit", ""), disable_numparse=True)


def _paced(result: dict[str, Any]) -> list[Limit]:
    case, ranks = result["case"], result["ranks"]
    run = f"{ranks} ranks, {run_text(case)}, paced"
    limits = []
    for row in result["rows"]:
        if ranks in _ACCURACY:
            off = _ACCURACY[ranks]
            ratio = row["measured_s"] / row["simulated_s"]
            limits.append(Limit(run, row["name"], "measured / simulated", ratio, 1 - off, 1 + off))
        bounds = _OVER_BOUND.get(row["name"], {}).get(case["blocks"])
        if ranks == min(_ACCURACY) and bounds and case["ratio"] == 1.0 and case["graph"] == "pair":
            limits.append(Limit(run, row["name"], "measured / bound", row["measured_s"] / result["bound_s"], *bounds))
    return limits


def _nano(results: list[dict[str, Any]]) -> list[Limit]:
    """Nano-batches of all blocks hide most of what a forward, and a step, exposes without them."""
    limits = []
    for x in comparisons(results):
        case = x.result["case"]
        judged = case["paced"] and case["ratio"] == 1.0 and x.order == "auto" and x.graph in ("forward", "step")
        judged = judged and case["nano_batched"] == "stage"  # else attention is in no lane, and hides nothing
        if judged and x.hidden is not None and x.result["ranks"] == min(_ACCURACY):
            run = f"{x.result['ranks']} ranks, {run_text({**case, 'graph': x.graph})}, paced"
            limits.append(Limit(run, x.order, "hidden of what is exposed without", x.hidden, _HIDDEN, 1.0))
    return limits


def _real(result: dict[str, Any]) -> list[Limit]:
    """Policies beat sequential graphs by more than the spread, and these lose nothing against eager beyond it."""
    rows = {row["name"]: row for row in result["rows"]}
    run = f"{result['ranks']} ranks, {run_text(result['case'])}, real"
    limits = []
    sequential = rows.get("sequential")
    if sequential is None or result["case"]["graph"] != "pair":
        return []
    for name in ("alternate", "list", "auto"):
        if name in rows:
            ratio = rows[name]["measured_s"] / sequential["measured_s"]
            most = sequential["fastest_s"] / sequential["measured_s"]
            limits.append(Limit(run, name, "of sequential, below its spread", ratio, 0.0, most))
    if "eager" in rows:
        ratio = sequential["measured_s"] / rows["eager"]["measured_s"]
        most = rows["eager"]["slowest_s"] / rows["eager"]["measured_s"]
        limits.append(Limit(run, "sequential", "of eager, within its spread", ratio, 0.0, most))
    return limits
