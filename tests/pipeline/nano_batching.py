"""Schedules with nano-batches, for tests."""

import dataclasses

import annopipe as ap
from annopipe.scheduling.actions import overlap


def nano_batched(schedule, parts=2, wanted=lambda stage, microbatch: True):
    """What is not combined with anything, and all else of the same stages and microbatches, in nano-batches.

    `wanted(stage, microbatch)` leaves some out.
    """
    alone = {(a.stage, a.microbatch) for row in schedule.ranks for a in row if a.kind in "FBIW"}
    chosen = {pair for pair in alone if wanted(*pair)}

    def cut(action):
        if action.parts:
            return overlap(*map(cut, action.parts))
        is_chosen = action.kind in "FBIW" and (action.stage, action.microbatch) in chosen
        return dataclasses.replace(action, nano_batches=parts) if is_chosen else action

    return ap.Schedule.of(
        schedule.placement, schedule.microbatches, [list(map(cut, row)) for row in schedule.ranks], schedule.name
    )
