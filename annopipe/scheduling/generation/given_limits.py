"""The limits of a specification, worked out for every rank and stage."""

from typing import TypeVar

from annopipe.errors import ScheduleError
from annopipe.scheduling.generation.formulas import compiled
from annopipe.scheduling.generation.spec_fields import IN_FLIGHT_NAMES, SpecFields
from annopipe.scheduling.generation.traversal import values_of

__all__ = ["activation_of", "in_flight_of_ranks", "in_flight_of_stages", "memory_of_ranks"]

T = TypeVar("T")
_OF_STAGE = {"s", "c"}
_ROUNDING = 5e-10  # less than what `RankLimits` lets pass


def in_flight_of_ranks(spec: SpecFields) -> list[int | None]:
    """How many forwards without their backward each rank may hold; None is any number.

    Raises ScheduleError for a limit that no microbatch can pass under.
    """
    given, placement = spec.in_flight, spec.placement
    if _is_of_stages(given):
        return [None] * placement.ranks
    limits: list[int | None] = []
    for rank, stages in enumerate(placement.stages_on):
        chunks = max(placement.chunk_of[stage] for stage in stages) + 1
        if isinstance(given, str):
            limit: int | None = compiled(given, IN_FLIGHT_NAMES)(values_of(placement, spec.microbatches, stages[0]))
        else:
            limit = _per_rank(given, rank)
        if limit is not None and limit < chunks:
            raise ScheduleError(
                f"in_flight={given!r} is {limit} on rank {rank}, which holds {chunks} stages of a microbatch at once; "
                f"give {chunks} or more"
            )
        limits.append(limit)
    return limits


def in_flight_of_stages(spec: SpecFields) -> list[int | None]:
    """The same for each stage, when the formula names the stage or the chunk."""
    given, placement = spec.in_flight, spec.placement
    if not isinstance(given, str) or not _is_of_stages(given):
        return [None] * placement.stages
    formula = compiled(given, IN_FLIGHT_NAMES)
    limits = [formula(values_of(placement, spec.microbatches, stage)) for stage in range(placement.stages)]
    for stage, limit in enumerate(limits):
        if limit < 1:
            raise ScheduleError(
                f"in_flight={given!r} is {limit} for stage {stage}, on rank {placement.rank_of[stage]}; "
                "a stage needs 1 or more"
            )
    return [*limits]


def memory_of_ranks(spec: SpecFields) -> list[float | None]:
    """How much activation each rank may hold; None is any amount.

    Raises ScheduleError for a limit under which no microbatch fits.
    """
    placement = spec.placement
    limits: list[float | None] = []
    for rank, stages in enumerate(placement.stages_on):
        limit = _per_rank(spec.memory, rank)
        needed = max(
            sum(activation_of(spec, stage) for stage in stages if placement.copy_of[stage] == copy)
            for copy in range(placement.copies)
        )
        if limit is not None and limit < needed * (1.0 - _ROUNDING):
            raise ScheduleError(
                f"memory={limit} on rank {rank}: one microbatch keeps {needed} there; give {needed} or more"
            )
        limits.append(limit)
    return limits


def activation_of(spec: SpecFields, stage: int) -> float:
    """The most that a microbatch holds on a stage: its activation, what operations bring to it, what I leaves for W.

    What operations take away is not counted on: it is gone when they have ended, which the rules do not know.
    """
    share = highest = 1.0
    own = [operation for operation in spec.operations if operation.applies_to(stage)]
    for operation in sorted(own, key=lambda operation: operation.after is None):
        share += operation.memory
        highest = max(highest, share)
    return spec.costs.activation_of(stage) * highest * max(1.0, spec.costs.kept_for_weight_of(stage))


def _is_of_stages(given: object) -> bool:
    return isinstance(given, str) and bool(compiled(given, IN_FLIGHT_NAMES).names & _OF_STAGE)


def _per_rank(given: T | tuple[T, ...] | None, rank: int) -> T | None:
    """One rank's share of what is given once for all ranks, or once for each."""
    return given[rank] if isinstance(given, tuple) else given
