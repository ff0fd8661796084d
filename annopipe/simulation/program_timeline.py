"""One rank's timeline: when everything ran, how much communication was hidden, and what holds the rest."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike

from annopipe.simulation import html, perfetto, png, text
from annopipe.simulation.exposure import RegionComm, region_comm
from annopipe.simulation.host_syncs import HostSync, host_syncs, own_group_saving
from annopipe.simulation.intervals import length, merge
from annopipe.simulation.spans import Span, Track, lay_out, spans_of
from annopipe.simulation.stalls import Stall, explain
from annopipe.simulation.tasks import Task
from annopipe.simulation.timeline import Timeline
from annopipe.simulation.trace import Trace
from annopipe.simulation.wording import seconds_text

__all__ = ["ProgramTimeline"]


# No slots: what is costly is computed on first use and kept (cached_property needs the instance's dictionary).
@dataclass(frozen=True, repr=False)
class ProgramTimeline(Timeline):
    """What one rank did, from the start of its program; every time in seconds.

    Made by `annopipe.simulation.run`. Every number is arithmetic on the raw `trace`; nothing is estimated.

    >>> from annopipe.simulation import Task, run
    >>> timeline = run([
    ...     Task("exchange", "launch", 3.0, region="moe/dispatch", lane="F", queue="ep"),
    ...     Task("attention", "compute", 2.0, region="attention", lane="B"),
    ...     Task("wait", "wait", launch=0, lane="F"),
    ... ])
    >>> timeline.makespan, timeline.compute_time, timeline.comm_time, timeline.exposed_comm
    (3.0, 2.0, 3.0, 1.0)
    >>> [(span.track, span.name) for span in timeline.spans]
    [('compute', 'attention'), ('compute', 'wait'), ('comm ep', 'exchange')]
    >>> timeline.stalls[0].reason
    'nothing left to run: what could run beside it has run'
    """

    trace: Trace

    def __repr__(self) -> str:
        return f"ProgramTimeline({len(self.trace.tasks)} tasks, makespan {seconds_text(self.makespan)})"

    def __str__(self) -> str:
        """A drawing of at most 100 columns, communication per region, and the largest stalls with their reasons."""
        return text.render(self)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Everything that took time, track by track: see `Span`."""
        return spans_of(self.trace)

    @cached_property
    def tracks(self) -> tuple[Track, ...]:
        """The spans as rows to draw: compute, host if any, and one or more rows per queue."""
        return lay_out(self.spans)

    @cached_property
    def makespan(self) -> float:
        """When all tasks and all transfers are finished."""
        return self.trace.makespan

    @property
    def window(self) -> float:
        """Last end minus first start."""
        if not self.spans:
            return 0.0
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    @property
    def bubble(self) -> float:
        """Share of the makespan, 0 to 1, during which the issuing thread is stalled or has nothing left to do."""
        if not self.makespan:
            return 0.0
        busy = self.compute_time + self.host_time + self.issue_time
        return max(0.0, 1.0 - busy / self.makespan)

    @property
    def peak_memory(self) -> None:
        """Not known: tasks do not say what they keep."""

    @cached_property
    def compute_time(self) -> float:
        """Time in computation, as long as it took beside transfers."""
        return self._total("compute", lambda task: task.duration) + self.interference_time

    @cached_property
    def interference_time(self) -> float:
        """How much longer computation took because transfers moved beside it: see `Network.interference`."""
        trace = self.trace
        if not trace.network.interference:
            return 0.0
        computations = (position for position, task in enumerate(trace.tasks) if task.kind == "compute")
        slowed = math.fsum(trace.ends[p] - trace.starts[p] - trace.tasks[p].duration for p in computations)
        return max(0.0, slowed)  # rounding of starts and ends can leave less than nothing

    @cached_property
    def host_time(self) -> float:
        """Time in host reads and host work."""
        return self._total("host", lambda task: task.duration)

    @cached_property
    def issue_time(self) -> float:
        """Time that the issuing thread spends to start transfers."""
        return self._total("launch", lambda task: task.issue)

    @cached_property
    def comm_time(self) -> float:
        """Time during which at least one transfer moves."""
        return length(merge((transfer.start, transfer.end) for transfer in self.trace.transfers.values()))

    @cached_property
    def exposed_comm(self) -> float:
        """Time during which a transfer moves while the issuing thread is stalled in a wait, or has ended."""
        stalled = math.fsum(self.trace.ends[wait] - self.trace.starts[wait] for wait in self.trace.stalled)
        ended = self.trace.ends[-1] if self.trace.ends else 0.0
        return stalled + max(0.0, self.makespan - ended)

    @property
    def hidden_comm(self) -> float:
        """Time during which a transfer moves and the thread runs something."""
        return max(0.0, self.comm_time - self.exposed_comm)

    @property
    def hidden_share(self) -> float:
        """Hidden part of the communication, 0 to 1; 1 when there is none."""
        return self.hidden_comm / self.comm_time if self.comm_time else 1.0

    @cached_property
    def regions(self) -> tuple[RegionComm, ...]:
        """Communication of each lane and region; the exposed parts add up to `exposed_comm`."""
        return region_comm(self.trace, self.stalls)

    @cached_property
    def stalls(self) -> tuple[Stall, ...]:
        """Every stall with what holds it there, in program order."""
        return explain(self.trace)

    @cached_property
    def host_syncs(self) -> tuple[HostSync, ...]:
        """Every count exchange and every host read, in order of the first read: see `HostSync`."""
        return host_syncs(self.trace)

    @cached_property
    def own_group_saving(self) -> float:
        """Seconds of makespan that a process group of their own for the count exchanges would save, in this order."""
        return own_group_saving(self.trace, self.host_syncs)

    def to_dict(self) -> dict[str, object]:
        """Plain data: the numbers, the regions, the stalls, the host synchronisations and the spans.

        >>> from annopipe.simulation import Task, run
        >>> run([Task("mm", "compute", 2.0)]).to_dict()["makespan"]
        2.0
        """
        numbers = ("makespan", "window", "bubble", "compute_time", "interference_time", "host_time", "issue_time")
        comm = ("comm_time", "exposed_comm", "hidden_comm", "hidden_share", "own_group_saving")
        return {
            **{name: getattr(self, name) for name in (*numbers, *comm)},
            "regions": [asdict(region) for region in self.regions],
            "stalls": [asdict(stall) for stall in self.stalls],
            "host_syncs": [asdict(sync) for sync in self.host_syncs],
            "spans": [asdict(span) for span in self.spans],
        }

    def to_html(self, path: str | PathLike[str], title: str | None = None) -> None:
        """Write one self-contained page for a browser; `annopipe.simulation.html.write` compares several timelines."""
        html.write(path, {"": self}, "annopipe timeline" if title is None else title)

    def to_png(self, path: str | PathLike[str], title: str | None = None) -> None:
        """Write a picture; `annopipe.simulation.png.write` compares several timelines. Needs matplotlib.

        Raises AnnopipeError when matplotlib is not installed.
        """
        png.write(path, {"": self}, "annopipe timeline" if title is None else title)

    def to_perfetto(self, path: str | PathLike[str]) -> None:
        """Write a Chrome trace (JSON) for https://ui.perfetto.dev or chrome://tracing."""
        perfetto.write(path, self)

    def _total(self, kind: str, seconds: Callable[[Task], float]) -> float:
        return math.fsum(seconds(task) for task in self.trace.tasks if task.kind == kind)
