"""``auto``: the shortest order, in simulation, of all policies and of a local search that starts from them.

Where nothing is shorter than program order, program order it is; the reason says what was chosen, against what, and
what stays exposed, and whether nano-batches inside a graph lose against the whole (``nano_batches_lose``). PyTorch's
own scheduler (``torch``) is not among the candidates: it takes seconds and is there to compare with.
"""

from collections.abc import Callable

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.builtin_policies.alternate import alternate
from annopipe.ordering.builtin_policies.list_scheduling import list_
from annopipe.ordering.builtin_policies.published import dualpipe, megatron
from annopipe.ordering.builtin_policies.sequential import sequential
from annopipe.ordering.host_reads import counts_together_if_no_slower
from annopipe.ordering.improvement import improved
from annopipe.ordering.problem import OverlapProblem, ReasonedOrder
from annopipe.simulation import run
from annopipe.simulation.wording import seconds_text

__all__ = ["auto", "nano_batches_lose"]

_NAMED: dict[str, Callable[[OverlapProblem], list[int]]] = {
    "alternate": alternate,
    "dualpipe": dualpipe,
    "megatron": megatron,
    "list": list_,
}
_SAME = 1.0 - 1e-9  # differences of rounding are no gain


def auto(problem: OverlapProblem) -> ReasonedOrder:
    """The best of all policies in simulation, program order when nothing pays; needs costs."""
    orders = {"sequential": list(sequential(problem))}
    for name, function in _NAMED.items():
        order = function(problem)
        orders[name] = order
        orders[f"{name}, waits late"] = waits_late(problem, order)
    spans = {name: problem.makespan(order) for name, order in orders.items()}
    shortest = min(spans, key=spans.__getitem__)
    chosen = shortest if spans[shortest] < spans["sequential"] * _SAME else "sequential"
    if chosen != "sequential" and spans[chosen] > lower_bound(problem):
        candidates = sorted(orders, key=spans.__getitem__)
        orders["search"] = improved(problem, [orders[name] for name in candidates])
        spans["search"] = problem.makespan(orders["search"])
        if spans["search"] < spans[chosen] * _SAME:
            chosen = "search"
    if chosen != "sequential":
        orders[chosen] = counts_together_if_no_slower(problem, orders[chosen])
    reason = _reason(problem, orders[chosen], chosen, spans)
    return ReasonedOrder(orders[chosen], "; ".join(filter(None, (reason, nano_batches_lose(problem, spans[chosen])))))


def nano_batches_lose(problem: OverlapProblem, makespan: float) -> str:
    """Says so if an order of this makespan is no shorter than the graph without nano-batches in program order.

    That is program order less the latency of all messages but one where each nano-batch sends its own; that smaller
    pieces also compute less well is not counted.
    """
    sent: dict[tuple[str, ...], dict[str, list[float]]] = {}  # by what the message is for: latencies, by lane
    for node in problem.nodes:
        if node.kind == "launch":
            key = node.own_graph, node.region, node.phase, node.operation
            sent.setdefault(key, {}).setdefault(node.lane, []).append(node.latency)
    split = [by_lane for by_lane in sent.values() if len(by_lane) > 1]
    saved = sum(sum(map(sum, lanes.values())) - max(map(sum, lanes.values())) for lanes in split)
    whole = problem.makespan(range(len(problem.nodes))) - saved
    if not split or makespan < whole * _SAME:
        return ""
    more = sum(sum(map(len, lanes.values())) - max(map(len, lanes.values())) for lanes in split)
    return (
        f"nano-batches lose: their {more} more messages cost {seconds_text(saved)}, and the whole takes at most "
        f"{seconds_text(whole)} in program order: do not split here"
    )


def _reason(problem: OverlapProblem, order: list[int], chosen: str, spans: dict[str, float]) -> str:
    makespan, bound = spans[chosen], lower_bound(problem)
    if chosen == "sequential":
        if all(node.kind != "launch" for node in problem.nodes):
            return "sequential: there is no communication to hide"
        return f"sequential: {seconds_text(makespan)}, and no other order is shorter; {_exposed(problem, order)}"
    others = ", ".join(
        f"{name} {seconds_text(seconds)}" for name, seconds in spans.items() if name != chosen and "late" not in name
    )
    of_bound = f", {makespan / bound:.3f} of the lower bound" if bound else ""
    saved = 1 - makespan / spans["sequential"]
    return (
        f"{chosen}: {seconds_text(makespan)}, {saved:.0%} less than sequential{of_bound} ({others}); "
        f"{_exposed(problem, order)}"
    )


def _exposed(problem: OverlapProblem, order: list[int]) -> str:
    """The longest piece of communication that stays exposed, and why."""
    timeline = run(problem.program(order), problem.network)
    if not timeline.stalls:
        return "nothing is exposed" if not timeline.exposed_comm else "exposed at the end, when nothing is left to run"
    worst = max(timeline.stalls, key=lambda stall: stall.seconds)
    return f"most exposed: {worst.place}, {seconds_text(worst.seconds)}: {worst.reason}"
