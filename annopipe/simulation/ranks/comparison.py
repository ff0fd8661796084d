"""Several schedules side by side in one table."""

from collections.abc import Mapping

from annopipe.errors import ScheduleError
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.tables import table
from annopipe.simulation.wording import amount_text, one_line, seconds_text

__all__ = ["compare", "comparison_rows"]

_WIDTH = 110


def compare(timelines: Mapping[str, Pictured], *, baseline: str | None = None) -> str:
    """One row per schedule: its times, bubble, peak of memory, and what it sends.

    The second column is how much longer the makespan is than that of `baseline`, a name among the timelines; without
    it, than the shortest. "communication" is the time of all messages on their links, "exposed" the part of it, over
    all ranks, that computation waits for.

    Raises ScheduleError when there is nothing to compare, or `baseline` is not among the names.

    >>> import annopipe as ap
    >>> orders = {"one by one": ["0F0", "0B0", "0F1", "0B1"], "forward first": ["0F0", "0F1", "0B0", "0B1"]}
    >>> shown = {
    ...     name: ap.simulate(ap.Schedule.of(ap.placement.linear(1), 2, [order]), ap.costs.table(F=1.0, B=2.0))
    ...     for name, order in orders.items()
    ... }
    >>> print(compare(shown))
    schedule       makespan  to best  bubble  window  peak memory  messages  communication  exposed
    one by one          6 s        -    0.0%     6 s            1         0            0 s      0 s
    forward first       6 s        -    0.0%     6 s            2         0            0 s      0 s
    """
    return "\n".join(table(comparison_rows(timelines, baseline=baseline), _WIDTH, left=(0,), yielding=0))


def comparison_rows(timelines: Mapping[str, Pictured], *, baseline: str | None = None) -> list[list[str]]:
    """The cells of that table, its head first; see `compare`."""
    if not timelines:
        raise ScheduleError("no timelines to compare; give a mapping from names to timelines, one per schedule")
    if baseline is not None and baseline not in timelines:
        raise ScheduleError(f"no timeline is called {baseline!r}; the names are {', '.join(timelines)}")
    ranks = {timeline.ranks for timeline in timelines.values()}
    reference = (timelines[baseline] if baseline is not None else _shortest(timelines)).makespan
    head = ["schedule", "makespan", f"to {one_line(baseline)}" if baseline is not None else "to best", "bubble"]
    head += ["window", "peak memory", "messages", "communication", "exposed"]
    rows = [[*head, "ranks"] if len(ranks) > 1 else head]
    for name, timeline in timelines.items():
        row = [one_line(name), seconds_text(timeline.makespan), _difference(timeline.makespan, reference)]
        row += [f"{timeline.bubble:.1%}", seconds_text(timeline.window), amount_text(timeline.peak_memory)]
        row += [str(timeline.message_count), seconds_text(timeline.comm_time), seconds_text(timeline.exposed_comm)]
        rows.append([*row, str(timeline.ranks)] if len(ranks) > 1 else row)
    return rows


def _shortest(timelines: Mapping[str, Pictured]) -> Pictured:
    return min(timelines.values(), key=lambda timeline: timeline.makespan)


def _difference(makespan: float, reference: float) -> str:
    """How much longer, in percent; "-" for the same."""
    if not reference:
        return "-"
    text = f"{makespan / reference - 1:+.1%}"
    return "-" if text in ("+0.0%", "-0.0%") else text
