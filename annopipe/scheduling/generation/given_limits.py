"""The limits of a specification, worked out for every rank and stage."""

from typing import TypeVar

from annopipe.errors import ScheduleError
from annopipe.scheduling.generation.formulas import compiled
from annopipe.scheduling.generation.spec_fields import SpecFields
from annopipe.scheduling.generation.traversal import values_of
from annopipe.scheduling.placement import Placement

__all__ = ["in_flight_of_ranks", "in_flight_of_stages", "memory_of_ranks"]

T = TypeVar("T")
_OF_STAGE = {"s", "c"}


def in_flight_of_ranks(spec: SpecFields) -> list[int | None]:
    """How many forwards without their backward each rank may hold; None is any number.

    Raises ScheduleError for a limit that no microbatch can pass under.
    """
    given, placement = spec.in_flight, spec.placement
    if isinstance(given, str) and compiled(given).names & _OF_STAGE:
        return [None] * placement.ranks
    limits: list[int | None] = []
    for rank, stages in enumerate(placement.stages_on):
        chunks = max(placement.chunk_of[stage] for stage in stages) + 1
        if isinstance(given, str):
            limit: int | None = compiled(given)(values_of(placement, spec.microbatches, stages[0]))
        else:
            limit = _per_rank(given, rank, placement, "in_flight")
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
    if not isinstance(given, str) or not compiled(given).names & _OF_STAGE:
        return [None] * placement.stages
    limits = [compiled(given)(values_of(placement, spec.microbatches, stage)) for stage in range(placement.stages)]
    for stage, limit in enumerate(limits):
        if limit < 1:
            raise ScheduleError(f"in_flight={given!r} is {limit} for stage {stage}; a stage needs 1 or more")
    return [*limits]


def memory_of_ranks(spec: SpecFields) -> list[float | None]:
    """How much activation each rank may hold; None is any amount.

    Raises ScheduleError for a limit under which no microbatch fits.
    """
    placement, costs = spec.placement, spec.costs
    limits: list[float | None] = []
    for rank, stages in enumerate(placement.stages_on):
        limit = _per_rank(spec.memory, rank, placement, "memory")
        needed = max(
            sum(costs.activation_of(stage) for stage in stages if placement.copy_of[stage] == copy)
            for copy in range(placement.copies)
        )
        if limit is not None and limit < needed:
            raise ScheduleError(
                f"memory={limit} on rank {rank}: one microbatch keeps {needed} there; give {needed} or more"
            )
        limits.append(limit)
    return limits


def _per_rank(given: T | tuple[T, ...] | None, rank: int, placement: Placement, name: str) -> T | None:
    """One rank's share of what is given once for all ranks, or once for each.

    Raises ScheduleError when there is another count than there are ranks.
    """
    if not isinstance(given, tuple):
        return given
    if len(given) != placement.ranks:
        raise ScheduleError(f"{name} has {len(given)} entries and there are {placement.ranks} ranks; give one for each")
    return given[rank]
