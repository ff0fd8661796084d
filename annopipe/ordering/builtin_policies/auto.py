"""``auto``: the shortest order, in simulation, of all policies and of a short search.

Where nothing is shorter than program order, program order it is; the reason says what was chosen, against what, and
what stays exposed. PyTorch's own scheduler (``torch``) is not among the candidates: it takes seconds and is there to
compare with. The search is that of ``search``, with less work.
"""

from annopipe.ordering.bounds import CLOSE, lower_bound
from annopipe.ordering.builtin_policies.candidates import NAMED, SAME, named_orders, reason_for
from annopipe.ordering.problem import OverlapProblem, ReasonedOrder
from annopipe.ordering.search.exploring import briefly_explored

__all__ = ["auto"]


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
    return ReasonedOrder(orders[chosen], reason_for(problem, orders[chosen], chosen, spans, proven=proven))
