"""The rules that a search tries on a layout: which kind first, in which order, how many microbatches in flight."""

import itertools
from dataclasses import replace

from annopipe.scheduling.placement import Placement
from annopipe.tuning.trial import Rules
from annopipe.tuning.workload import Workload

__all__ = ["first_rules", "more_rules", "neighbours"]

_SHARES = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the stages of all ranks: how many forwards a rank may hold
_ALONE = tuple(
    Rules(priority) for priority in (("I", "F", "W"), ("F", "I", "W"), ("B", "F"), ("F", "B"), ("I", "W", "F"))
)
_PAIRED = (
    Rules(("B", "I", "F", "W"), split_backward="unpaired", pair=("F", "B")),
    Rules(("B", "F"), pair=("F", "B")),
    Rules(("F", "B"), pair=("F", "B")),
)


def first_rules(work: Workload, placement: Placement) -> list[Rules]:
    """A few for every layout, which show what it is worth."""
    limits = _limits(work, placement)
    some = dict.fromkeys((limits[len(limits) // 2], limits[-1]))
    kinds = [*_ALONE[:2], *(_PAIRED[:2] if work.has_comm else ())]
    return [replace(kind, in_flight=limit) for kind in kinds for limit in some]


def more_rules(work: Workload, placement: Placement) -> list[Rules]:
    """All that are worth trying on a good layout."""
    traversals = ["depth-first", "breadth-first"]
    if placement.stages > placement.ranks and placement.copies == 1 and placement.is_chain:
        traversals.append("k // p, c, k")
    kinds = [*_ALONE, *(_PAIRED if work.has_comm else ())]
    every = itertools.product(kinds, traversals, _limits(work, placement))
    return [replace(kind, traversal=traversal, in_flight=limit) for kind, traversal, limit in every]


def neighbours(work: Workload, placement: Placement, rules: Rules) -> list[Rules]:
    """Rules that differ in limits: of all ranks, of one, or of the first ones."""
    if rules.in_flight is None:
        return []
    ranks = range(placement.ranks)
    now = rules.in_flight if isinstance(rules.in_flight, tuple) else (rules.in_flight,) * len(ranks)
    groups = [[*ranks], *([rank] for rank in ranks), *([*ranks[:count]] for count in ranks[1:])]
    found = [
        tuple(limit + change * (rank in group) for rank, limit in zip(ranks, now, strict=True))
        for change in (-2, -1, 1, 2)
        for group in groups
    ]
    most = work.microbatches * max(map(len, placement.stages_on))
    allowed = dict.fromkeys(limits for limits in found if all(1 <= limit <= most for limit in limits))
    return [replace(rules, in_flight=limits) for limits in allowed]


def _limits(work: Workload, placement: Placement) -> list[int | None]:
    """How many forwards a rank may hold; a loss over the whole batch needs all of them."""
    if work.batch_wide:
        return [None]
    stages, held = placement.stages, max(map(len, placement.stages_on))
    most = work.microbatches * held
    return [*sorted({min(most, max(held, round(stages * share))) for share in _SHARES})]
