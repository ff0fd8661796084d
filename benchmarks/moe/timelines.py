"""A simulated step as rows of a result say it: its numbers, and when everything ran, as plain lists."""

import math
from typing import Any

from annopipe.simulation.ranks.timeline import ScheduleTimeline

__all__ = ["plain_timeline", "predicted_row"]

_DIGITS = 7  # a tenth of a microsecond
TimelineRow = tuple[int, str, float, float, str]


def predicted_row(
    timeline: ScheduleTimeline, at_the_end_s: float = 0.0, bound_s: float | None = None
) -> dict[str, Any]:
    """The numbers of a simulated step, and its timeline.

    Args:
        timeline: of one pipeline.
        at_the_end_s: what follows on every rank when its last action has ended: the sum of gradients.
        bound_s: what no schedule can beat; None: what no order of this schedule's actions can: the most that a rank
            computes, or communicates inside its actions.

    >>> import annopipe as ap
    >>> costs = ap.costs.table(F=1.0, B=2.0, exposed={"F": 0.25, "B": 0.25})
    >>> found = predicted_row(ap.simulate(ap.schedule("1f1b", ranks=2, microbatches=2), costs))
    >>> found["seconds"], found["bound_seconds"], found["exposed_seconds"], found["timeline"][0]
    (9.0, 5.0, 2.0, (0, 'compute', 0.0, 1.0, '0F0'))
    """
    inside = [
        (busy - math.fsum(own.inside_exposed for own in comm), math.fsum(own.inside for own in comm))
        for busy, comm in zip(timeline.busy, timeline.comm_by_action, strict=True)
    ]
    own_bound_s = max((most for both in inside for most in both), default=0.0) + at_the_end_s
    return {
        "seconds": timeline.makespan + at_the_end_s,
        "exposed_seconds": timeline.exposed_comm,
        "peak_bytes": round(timeline.peak_memory),
        "bound_seconds": own_bound_s if bound_s is None else bound_s,
        "bubble": timeline.bubble,
        "timeline": plain_timeline(timeline),
    }


def plain_timeline(timeline: ScheduleTimeline) -> list[TimelineRow]:
    """Rank, lane, start, end and label of every action, and of every message, on the rank that sends it."""
    actions = [
        (span.rank, "compute", round(span.start, _DIGITS), round(span.end, _DIGITS), span.text)
        for spans in timeline.spans
        for span in spans
    ]
    messages = [
        (message.sender, "communication", round(message.start, _DIGITS), round(message.arrival, _DIGITS), message.text)
        for message in timeline.messages
        if message.arrival > message.start
    ]
    return [*actions, *messages]
