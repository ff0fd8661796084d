"""What every presentation of a timeline says first: its key numbers and its advice, in words."""

from typing import TYPE_CHECKING

from annopipe.simulation.wording import seconds_text

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["key_numbers", "own_group_advice"]

# Below this share of the makespan a saving is rounding.
_NEGLIGIBLE = 1e-9


def key_numbers(timeline: "ProgramTimeline") -> list[tuple[str, str]]:
    """How the time of the issuing thread is spent, by name; what takes none is left out, except computation.

    >>> from annopipe.simulation import Task, run
    >>> key_numbers(run([Task("x", "launch", 3.0, issue=0.5), Task("mm", "compute", 2.0)]))
    [('makespan', '3.5 s'), ('computation', '2 s'), ('issue', '500 ms')]
    """
    return [
        (name, seconds_text(seconds))
        for name, seconds in (
            ("makespan", timeline.makespan),
            ("computation", timeline.compute_time),
            ("interference", timeline.interference_time),
            ("host", timeline.host_time),
            ("issue", timeline.issue_time),
        )
        if seconds or name in ("makespan", "computation")
    ]


def own_group_advice(timeline: "ProgramTimeline") -> str:
    """What a process group of their own would save the count exchanges; "" when none is queued behind data.

    >>> from annopipe.simulation import Task, run
    >>> own_group_advice(run([Task("item", "host", 1.0)]))
    ''
    """
    if not any(sync.behind for sync in timeline.host_syncs):
        return ""
    saving = timeline.own_group_saving
    if saving <= _NEGLIGIBLE * timeline.makespan:
        return "count exchanges queue behind data, but in this order a process group of their own would save nothing"
    return (
        "count exchanges queue behind data: in this order a process group of their own would save "
        f"{seconds_text(saving)} of {seconds_text(timeline.makespan)}"
    )
