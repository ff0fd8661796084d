"""Measure the phases of a step: operations in the schedule note when a rank's warm-up and steady state end."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import annopipe as ap
from annopipe.simulation.ranks.phases import steady_state

__all__ = ["MARKS", "Clock", "marked"]

MARKS = ("WARMED_UP", "NOT_STEADY")


def marked(schedule: ap.Schedule) -> ap.Schedule:
    """The schedule with an operation behind the warm-up of each rank, and one behind its steady state.

    >>> [str(action) for action in marked(ap.schedule("1f1b", ranks=2, microbatches=2)).ranks[0]]
    ['0F0', '0F1', '0WARMED_UP', '0NOT_STEADY', '0B0', '0B1']
    """
    rows = []
    for rank, actions in enumerate(schedule.ranks):
        steady = steady_state([action.kinds for action in actions])
        first, second = (ap.Action(mark, schedule.placement.stages_on[rank][0]) for mark in MARKS)
        rows.append([*actions[: steady.start], first, *actions[steady.start : steady.stop], second])
        rows[-1] += actions[steady.stop :]
    return ap.Schedule.of(schedule.placement, schedule.microbatches, rows, schedule.name)


@dataclasses.dataclass
class Clock:
    """The moments of the latest step on this rank, in seconds from its start."""

    started_s: float = 0.0
    warmed_up_s: float = 0.0
    not_steady_s: float = 0.0

    def attach(self, pipe: ap.Pipeline) -> None:
        """Let the pipeline's operations note the time."""
        for mark in MARKS:
            pipe.register(mark, self._note(f"{mark.lower()}_s"))

    def started(self, step: Callable[[], Any]) -> Any:
        """Run a step."""
        self.started_s = time.perf_counter()
        return step()

    def _note(self, name: str) -> Callable[[int, int | None], None]:
        return lambda _stage, _microbatch: setattr(self, name, time.perf_counter() - self.started_s)
