"""Rule: every declared operation is there once, on the right side of the action that it belongs to.

Per microbatch: for each microbatch whose action is done. Per stage: behind the last of the actions, or in front of the
first. A stage without such actions (a copy of the model that sees no microbatch) has no operation. Operations that are
not declared may stand anywhere, as often as they like.
"""

from collections.abc import Sequence

from annopipe.scheduling.actions import Action
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem
from annopipe.scheduling.operations import Operation

__all__ = ["operations_in_place"]

_Places = dict[Action, list[tuple[int, int]]]


def operations_in_place(facts: Facts, operations: Sequence[Operation]) -> None:
    """Raise ScheduleError for an operation that is missing, done twice, on the wrong side, or not declared so."""
    if not operations:
        return
    names = {operation.name for operation in operations}
    places: _Places = {}
    for rank, others in enumerate(facts.others):
        for step, number in others:
            action = facts.programs.numbering.action(number)
            if action.kind in names:
                places.setdefault(action, []).append((rank, step))
    for operation in operations:
        for stage in range(facts.programs.placement.stages):
            if operation.applies_to(stage):
                _of_stage(facts, operation, stage, places)
    for action, found in places.items():
        raise problem(
            facts.programs,
            *found[0],
            f"{action} is not what operation {action.kind!r} is declared as: it is for other stages, or differs in "
            "having a microbatch",
            "drop it, or declare it",
        )


def _of_stage(facts: Facts, operation: Operation, stage: int, places: _Places) -> None:
    """Look at the places of one operation of a stage, and take them out."""
    after = operation.after is not None
    # Where it has to be behind, or in front of: positions by action.
    anchors: dict[Action, int] = {}
    for kind in operation.anchors:
        for microbatch, position in zip(facts.seen(stage), facts.row(kind, stage, facts.begins), strict=True):
            if position >= 0:
                action = operation.action(stage, microbatch)
                known = anchors.get(action, position)
                anchors[action] = max(known, position) if after else min(known, position)
    for action, position in anchors.items():
        anchor = facts.place_at(position)
        rank, step = anchor
        text = facts.programs.text(rank, step)
        found = places.pop(action, [])
        side = "behind" if after else "in front of"
        if not found:
            raise problem(
                facts.programs, rank, None, f"{action} is missing", f"put it {side} {text} (step {step})", also=[anchor]
            )
        if found[1:]:
            what = f"{action} is done twice; it is at step {found[0][1]}, too"
            raise problem(facts.programs, *found[1], what, "drop one of them", also=[found[0]])
        if (found[0][1] > step) != after:
            what = f"{action} is {'in front of' if after else 'behind'} {text} (step {step})"
            raise problem(facts.programs, *found[0], what, f"put it {side} {text}", also=[anchor])
