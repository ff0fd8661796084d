"""``auto``: the shortest order, in simulation, of all policies and of a short search.

Where nothing is shorter than program order, program order it is; the reason says what was chosen, against what, and
what stays exposed, and whether nano-batches inside a graph lose against the whole (``nano_batches_lose``). PyTorch's
own scheduler (``torch``) is not among the candidates: it takes seconds and is there to compare with. The search is that
of ``search``, with less work.
"""

from annopipe.ordering.bounds import CLOSE, lower_bound
from annopipe.ordering.builtin_policies.candidates import NAMED, SAME, named_orders, reason_for
from annopipe.ordering.host_reads import counts_together_if_no_slower
from annopipe.ordering.problem import OverlapProblem, ReasonedOrder
from annopipe.ordering.search.exploring import briefly_explored
from annopipe.simulation.wording import seconds_text

__all__ = ["auto", "nano_batches_lose"]


def auto(problem: OverlapProblem) -> ReasonedOrder:
    """The best of all policies in simulation, program order when nothing pays; needs costs."""
    orders = named_orders(problem)
    spans = {name: problem.makespan(order) for name, order in orders.items()}
    shortest = min(spans, key=spans.__getitem__)
    chosen = shortest if spans[shortest] < spans["sequential"] * SAME else "sequential"
    proven = False
    if chosen != "sequential" and spans[chosen] > lower_bound(problem) * CLOSE:
        found = briefly_explored(problem, tuple(NAMED.values()))
        if found is not None:
            orders["search"], spans["search"] = found.order, problem.makespan(found.order)
            proven = found.proven
            if spans["search"] < spans[chosen] * SAME:
                chosen = "search"
    if chosen != "sequential":
        orders[chosen] = counts_together_if_no_slower(problem, orders[chosen])
    reason = reason_for(problem, orders[chosen], chosen, spans, proven=proven)
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
    if not split or makespan < whole * SAME:
        return ""
    more = sum(sum(map(len, lanes.values())) - max(map(len, lanes.values())) for lanes in split)
    return (
        f"nano-batches lose: their {more} more messages cost {seconds_text(saved)}, and the whole takes at most "
        f"{seconds_text(whole)} in program order: do not split here"
    )
