"""A schedule from phases: the exact order of every rank."""

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.generation.formulas import compiled
from annopipe.scheduling.generation.phases import Phase, RankWork, lay_out, parse_phases
from annopipe.scheduling.generation.spec_fields import LAYOUT_NAMES, MOST_PAIRS, SpecFields
from annopipe.scheduling.generation.traversal import traversal_order, traversals, values_of
from annopipe.scheduling.placement import Placement

__all__ = ["phased_rank", "phased_ranks"]


def phased_ranks(spec: SpecFields) -> list[list[Action]]:
    """The actions of every rank.

    Raises ScheduleError for a phase that cannot be read, or phases that leave work undone.
    """
    return [[action for action, _ in phased_rank(spec, rank)] for rank in range(spec.placement.ranks)]


def phased_rank(spec: SpecFields, rank: int) -> list[tuple[Action, Phase]]:
    """The actions of one rank, each with its phase."""
    placement = spec.placement
    values = values_of(placement, spec.microbatches, placement.stages_on[rank][0])
    wanted = max(spec.microbatches, compiled(spec.layout_for, LAYOUT_NAMES)(values))
    if wanted * placement.stages > MOST_PAIRS:
        raise ScheduleError(
            f"layout_for={spec.layout_for!r} is {wanted}: on {placement.stages} stages these are more than "
            f"{MOST_PAIRS} forwards; give fewer"
        )
    values["m"] = wanted
    forwards, backwards = (traversal_order(placement, wanted, rank, text) for text in traversals(spec))
    if not spec.has_backward:
        backwards = []
    chunks = tuple(sorted(placement.stages_on[rank], key=lambda stage: (placement.depth_of[stage], stage)))
    work = RankWork(chunks, [divmod(pair, wanted) for pair in forwards], [divmod(pair, wanted) for pair in backwards])
    laid_out = lay_out(parse_phases(spec.phases), work, values)
    kept = ((_present(action, placement, wanted, spec.microbatches), phase) for action, phase in laid_out)
    return [(action, phase) for action, phase in kept if action is not None]


def _present(action: Action, placement: Placement, wanted: int, microbatches: int) -> Action | None:
    """The action with its microbatch as it is numbered when there are fewer; None when there is no such microbatch."""
    if wanted == microbatches:
        return action
    if action.parts:
        parts = [found for part in action.parts if (found := _present(part, placement, wanted, microbatches))]
        return overlap(*parts) if len(parts) > 1 else parts[0] if parts else None
    index = (action.microbatch or 0) - placement.microbatches_of(action.stage, wanted).start
    present = placement.microbatches_of(action.stage, microbatches)
    return Action(action.kind, action.stage, present[index]) if index < len(present) else None
