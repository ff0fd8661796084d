"""The rules that a search tries on a layout: which kind first, in which order, how many microbatches in flight."""

import itertools

from annopipe.scheduling.placement import Placement
from annopipe.tuning.trial import Rules
from annopipe.tuning.workload import Workload

__all__ = ["first_rules", "more_rules", "neighbours"]

_SHARES = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the stages of all ranks: how many forwards a rank may hold
_ORDERS = (("I", "F", "W"), ("F", "I", "W"), ("B", "F"), ("F", "B"), ("I", "W", "F"))
_PAIRED = (
    {"priority": ("B", "I", "F", "W"), "split_backward": "unpaired", "pair": ("F", "B")},
    {"priority": ("B", "F"), "pair": ("F", "B")},
    {"priority": ("F", "B"), "pair": ("F", "B")},
)


def first_rules(work: Workload, placement: Placement) -> list[Rules]:
    """A few for every layout, which show what it is worth."""
    limits = _limits(work, placement)
    middle = limits[-1:] if work.batch_wide else sorted({limits[len(limits) // 2], limits[-1]})
    found = [Rules(priority=order, in_flight=limit) for order in _ORDERS[:2] for limit in middle]
    if work.has_comm:
        found += [Rules(**paired, in_flight=limit) for paired in _PAIRED[:2] for limit in middle]
    return found


def more_rules(work: Workload, placement: Placement) -> list[Rules]:
    """All that are worth trying on a good layout."""
    chunks = placement.stages // placement.ranks
    traversals = ["depth-first", "breadth-first"]
    if chunks > 1 and placement.copies == 1 and placement.is_chain:
        traversals.append("k // p, c, k")
    kinds = [{"priority": order} for order in _ORDERS]
    if work.has_comm:
        kinds += list(_PAIRED)
    return [
        Rules(**kind, traversal=traversal, in_flight=limit)
        for kind, traversal, limit in itertools.product(kinds, traversals, _limits(work, placement))
    ]


def neighbours(work: Workload, placement: Placement, rules: Rules) -> list[Rules]:
    """Rules that differ in one limit: of all ranks, or of one."""
    if rules.in_flight is None:
        return []
    ranks = placement.ranks
    now = rules.in_flight if isinstance(rules.in_flight, tuple) else (rules.in_flight,) * ranks
    found = []
    for change in (-2, -1, 1, 2):
        found.append(tuple(limit + change for limit in now))
        found += [tuple(l + change * (r == rank) for r, l in enumerate(now)) for rank in range(ranks)]
        found += [tuple(l + change * (r <= rank) for r, l in enumerate(now)) for rank in range(ranks - 1)]
    most = work.microbatches * max(map(len, placement.stages_on))
    allowed = dict.fromkeys(limits for limits in found if all(1 <= limit <= most for limit in limits))
    return [_with_limits(rules, limits) for limits in allowed]


def _with_limits(rules: Rules, limits: tuple[int, ...]) -> Rules:
    return Rules(rules.priority, rules.traversal, limits, rules.pair, rules.split_backward)


def _limits(work: Workload, placement: Placement) -> list[int | None]:
    """How many forwards a rank may hold; a loss over the whole batch needs all of them."""
    if work.batch_wide:
        return [None]
    stages, held = placement.stages, max(map(len, placement.stages_on))
    most = work.microbatches * held
    found = sorted({min(most, max(held, round(stages * share))) for share in _SHARES})
    return [*found]
