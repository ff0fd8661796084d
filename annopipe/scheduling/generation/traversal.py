"""The order in which a rank takes its forwards and its backwards, from the formulas of a specification."""

import re
from collections.abc import Iterable

from annopipe.scheduling.generation.formulas import Formula, compiled_keys
from annopipe.scheduling.generation.spec_fields import SpecFields
from annopipe.scheduling.placement import Placement

__all__ = ["key_values", "traversal_order", "traversals", "values_of"]

_FORWARD = {"depth-first": "k, c", "breadth-first": "c, k"}
_BACKWARD = {"depth-first": "k, v - 1 - c", "breadth-first": "v - 1 - c, k"}


def traversals(spec: SpecFields) -> tuple[str, str]:
    """The formulas of the orders of forwards and of backwards."""
    return _FORWARD.get(spec.traversal, spec.traversal), _backward_traversal(spec)


def traversal_order(placement: Placement, m: int, rank: int, text: str) -> list[int]:
    """The pairs of a rank in the order of a formula; ties go to the earlier stage, then the earlier microbatch."""
    keyed: list[tuple[int, ...]] = []
    keys = compiled_keys(text)
    for stage in placement.stages_on[rank]:
        columns = [key_values(key, placement, m, stage) for key in keys]
        keyed += zip(*columns, (stage * m + k for k in placement.microbatches_of(stage, m)), strict=True)
    keyed.sort()
    return [entry[-1] for entry in keyed]


def key_values(key: Formula, placement: Placement, m: int, stage: int) -> Iterable[int]:
    """The values of one key for every microbatch of a stage."""
    values, count = values_of(placement, m, stage), len(placement.microbatches_of(stage, m))
    if "k" not in key.names:
        return [key(values)] * count
    return range(count) if key.text == "k" else [key({**values, "k": k}) for k in range(count)]


def values_of(placement: Placement, microbatches: int, stage: int) -> dict[str, int]:
    """What the names of a formula stand for on a stage; "k" is added by who needs it."""
    rank = placement.rank_of[stage]
    copy = placement.copy_of[stage]
    chunks = sum(placement.copy_of[other] == copy for other in placement.stages_on[rank])
    chunk = placement.chunk_of[stage]
    return {"p": placement.ranks, "r": rank, "m": microbatches, "v": chunks, "s": stage, "c": chunk, "k": 0}


def _backward_traversal(spec: SpecFields) -> str:
    if spec.backward_traversal is not None:
        return _BACKWARD.get(spec.backward_traversal, spec.backward_traversal)
    if spec.traversal in _BACKWARD:
        return _BACKWARD[spec.traversal]
    # The same order from the last chunk to the first.
    return re.sub(r"\bc\b", "(v - 1 - c)", spec.traversal)
