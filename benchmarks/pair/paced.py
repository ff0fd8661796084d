"""Paced runs: the real launches and waits of a plan, in its order, over the real network; computation is waiting.

Between two communication calls the thread sleeps until its clock, which the known durations of the computation
advance. So many ranks fit on few cores, and no computation disturbs a transfer or is disturbed by one.
"""

import time
from collections.abc import Mapping, Sequence

from annopipe.costs import LaunchCall, NodeCosts
from annopipe.errors import CostError
from annopipe.simulation import Task
from benchmarks.waiting import wait_until

__all__ = ["paced_costs", "run_paced"]


def paced_costs(costs: NodeCosts, ratio: float, computation_s: float | None = None) -> NodeCosts:
    """The costs with computation scaled to ``ratio`` times the communication, and launches that take no time.

    Computation adds up to ``computation_s`` where that is given.
    """
    transfers = sum(costs.seconds[key] + issue for key, issue in costs.issue.items())
    computation = sum(seconds for key, seconds in costs.seconds.items() if key not in costs.issue)
    if not transfers and ratio:
        raise CostError("nothing to pace computation against: the graph has no communication")
    wanted = ratio * transfers if computation_s is None else computation_s
    scale = wanted / computation if computation else 0.0
    seconds = {
        key: value + costs.issue[key] if key in costs.issue else value * scale for key, value in costs.seconds.items()
    }
    return NodeCosts(seconds, costs.latency, dict.fromkeys(costs.issue, 0.0), costs.network, "measured, paced")


def run_paced(program: Sequence[Task], calls: Mapping[str, LaunchCall]) -> float:
    """Run a plan's program paced; returns its seconds on this rank."""
    started = clock = time.perf_counter()
    flying = {}
    for position, task in enumerate(program):
        if task.kind == "launch":
            wait_until(clock)
            flying[position] = calls[task.name], calls[task.name].launch()
        elif task.kind == "wait":
            wait_until(clock)
            call, launched = flying[task.launch]
            call.wait(launched)
            clock = max(clock, time.perf_counter())
        else:
            clock += task.duration
    wait_until(clock)
    for call, launched in flying.values():  # those that the program never waits for must not run on into the next round
        call.wait(launched)
    return time.perf_counter() - started
