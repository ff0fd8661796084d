"""Costs of one model for schedules that cut it differently.

Costs per microbatch on 1/p of the model become costs per stage: with v stages a rank, a stage has 1/v of the time and
of the memory. Messages stay as they are: they carry the output of a stage, whatever its size.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from annopipe.errors import CostError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.placement import Placement

__all__ = ["shared_out"]

_DIVIDED = ("F", "I", "W", "B", "FB", "activation", "parameters")
_KEPT = ("send", "kept_for_weight")
_TABLES = ("exposed", "operations", "lanes", "communication")


def shared_out(costs: ActionCosts, placement: Placement) -> ActionCosts:
    """Costs of each stage, from those of 1/p of the model; a sequence has one entry per rank, in the model's order.

    Raises CostError for a sequence of another length, or one for stages that the ranks do not divide evenly.

    >>> from annopipe.scheduling import placement
    >>> from annopipe.scheduling.action_costs import table
    >>> shared_out(table(F=[1.0, 3.0], I=1.0, send=0.5), placement.v(ranks=2)).F
    (0.5, 0.5, 1.5, 1.5)
    """
    parts = placement.ranks / (placement.stages / placement.copies)
    changed: dict[str, Any] = {}
    for name in _DIVIDED:
        changed[name] = _of_stages(getattr(costs, name), name, placement, parts)
    for name in _KEPT:
        changed[name] = _of_stages(getattr(costs, name), name, placement, 1.0)
    for name in _TABLES:
        given = getattr(costs, name).items()
        changed[name] = {kind: _of_stages(value, f"{name} {kind}", placement, parts) for kind, value in given}
    return replace(costs, **changed)


def _of_stages(value: Any, name: str, placement: Placement, share: float) -> Any:
    if value is None:
        return None  # B or FB that is the sum of its parts
    if callable(value):
        raise CostError(f"{name} is a function of the stage, which cannot be shared out; give costs per stage")
    if not isinstance(value, Sequence):
        return float(value) * share
    stages = placement.stages // placement.copies
    if len(value) != placement.ranks:
        raise CostError(
            f"{name} has {len(value)} entries and there are {placement.ranks} ranks; give one for each, or costs per "
            "stage"
        )
    if stages % placement.ranks:
        raise CostError(
            f"{name} has one entry per rank, and {stages} stages are not as many on each of {placement.ranks} ranks; "
            "give costs per stage"
        )
    # A second copy's stages are those of the first.
    return tuple(value[place * placement.ranks // stages] * share for place in placement.weights_of)
