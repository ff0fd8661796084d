"""The named policies that ``auto`` and ``search`` compare with, and what both say about their choice."""

from collections.abc import Callable, Mapping, Sequence

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.builtin_policies.alternate import alternate
from annopipe.ordering.builtin_policies.list_scheduling import list_
from annopipe.ordering.builtin_policies.published import dualpipe, megatron
from annopipe.ordering.builtin_policies.sequential import sequential
from annopipe.ordering.problem import OverlapProblem
from annopipe.simulation import run
from annopipe.simulation.wording import seconds_text

__all__ = ["NAMED", "SAME", "named_orders", "reason_for"]

NAMED: Mapping[str, Callable[[OverlapProblem], list[int]]] = {
    "alternate": alternate,
    "dualpipe": dualpipe,
    "megatron": megatron,
    "list": list_,
}
SAME = 1.0 - 1e-9  # differences of rounding are no gain


def named_orders(problem: OverlapProblem) -> dict[str, list[int]]:
    """The orders of the named policies, program order first; also with their waits late."""
    orders = {"sequential": list(sequential(problem))}
    for name, function in NAMED.items():
        order = function(problem)
        orders[name] = order
        orders[f"{name}, waits late"] = waits_late(problem, order)
    return orders


def reason_for(
    problem: OverlapProblem, order: Sequence[int], chosen: str, spans: Mapping[str, float], *, proven: bool = False
) -> str:
    """What was chosen, against what, and what stays exposed.

    Args:
        spans: seconds of every policy that was tried.
        proven: whether no order is shorter.
    """
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
    optimum = ", proven: no order is shorter" if proven else ""
    return (
        f"{chosen}: {seconds_text(makespan)}, {saved:.0%} less than sequential{of_bound}{optimum} ({others}); "
        f"{_exposed(problem, order)}"
    )


def _exposed(problem: OverlapProblem, order: Sequence[int]) -> str:
    """The longest piece of communication that stays exposed, and why."""
    timeline = run(problem.program(order), problem.network)
    if not timeline.stalls:
        return "nothing is exposed" if not timeline.exposed_comm else "exposed at the end, when nothing is left to run"
    worst = max(timeline.stalls, key=lambda stall: stall.seconds)
    return f"most exposed: {worst.place}, {seconds_text(worst.seconds)}: {worst.reason}"
