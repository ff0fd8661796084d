"""Why the issuing thread stalls: for each wait that blocked, what holds the exposed communication there.

A stall of x seconds at a wait can have several causes. Each is measured by how much of the stall would be gone without
it, at most x:

    queue   how long the transfer was behind others of its queue
    link    how much longer it moved than it would have with the link to itself
    early   how much work comes after the wait that another order could have put before it: work that needs neither this
            transfer nor any other that was launched before the wait and still unfinished when the stall began
    order   how long the launch was ready before the thread issued it (0 if it was queued: issued earlier, it would only
            have been queued longer)
    input   what is left of x after these: the launch could not be issued earlier, because of what it needs, and what
            could run beside the transfer did not last
    end     the same, when there is no such work: every task after the launch that takes time on the thread needs the
            transfer, directly or through others; or when the launch needs nothing that takes time

The largest is the cause; of equal ones, the first in this list. Its sentence is the reason:

    queue   queued behind <transfer>
    link    shares the link with <transfer>: the one that moved beside it longest
    early   waited early: <task> does not need it and runs after the wait
    order   launched late: ready at <time>, issued behind <task>: the one that took longest in between
    input   launched late: needs <task>, which ended at <time>
    end     nothing left to run: every later task needs it; or: what could run beside it has run

"needs" looks through tasks that take no time (views, waits that did not block) to the computation, host task or
transfer that the launch really had to wait for; of several, the one that ended last. A host task in this place is
named as a host synchronisation, and so is a host task right behind the wait that reads what arrived: the host blocks
there in any order.
"""

from dataclasses import dataclass
from typing import Literal

from annopipe.simulation.blockers import host_reader, issued_behind, queued_behind, shares_with, source
from annopipe.simulation.dependence import Dependence, Work
from annopipe.simulation.trace import Trace
from annopipe.simulation.wording import place_text, seconds_text

__all__ = ["Cause", "Stall", "explain"]

Cause = Literal["queue", "link", "early", "order", "input", "end"]


@dataclass(frozen=True, slots=True)
class Stall:
    """One stretch during which the issuing thread was blocked in a wait; times in seconds.

    Attributes:
        wait, launch: names of the wait and of the launch it waited for.
        region, lane: of the launch.
        start, end: when the thread was blocked.
        reason: what holds the stall there, as a sentence; the module docstring lists them.
        cause: the same as one word.
        blocker: name of the task that the reason names, "" if it names none.
        host_sync: name of the host task right behind the wait that reads what arrived, "" if there is none.

    >>> Stall("wait", "exchange", "moe/dispatch", "F", 1.0, 3.0, "queued behind other", "queue", "other").seconds
    2.0
    """

    wait: str
    launch: str
    region: str
    lane: str
    start: float
    end: float
    reason: str
    cause: Cause
    blocker: str = ""
    host_sync: str = ""

    @property
    def seconds(self) -> float:
        """Length of the stall."""
        return self.end - self.start

    @property
    def place(self) -> str:
        """Lane and region of the launch; its name if it has neither."""
        return place_text(self.lane, self.region) or self.launch


def explain(trace: Trace) -> tuple[Stall, ...]:
    """Every stall of a trace with its reason, in program order.

    >>> from annopipe.simulation import Task, run
    >>> program = [Task("a", "launch", 2.0), Task("wait", "wait", launch=0), Task("mm", "compute", 1.0)]
    >>> explain(run(program).trace)[0].reason
    'waited early: mm does not need it and runs after the wait'
    """
    needs = Dependence(trace)
    return tuple(_explain_one(trace, wait, number, needs) for number, wait in enumerate(trace.stalled))


def _explain_one(trace: Trace, wait: int, number: int, needs: Dependence) -> Stall:
    launch = trace.tasks[wait].launch
    task = trace.tasks[launch]
    verdict = _verdict(trace, wait, needs.work_beside(number), needs.by_all_later(number))
    reason = verdict.reason
    reader = host_reader(trace, wait)
    if reader >= 0:
        reason += f"; {trace.tasks[reader].label} right behind the wait is a host synchronisation"
    return Stall(
        wait=trace.tasks[wait].name,
        launch=task.name,
        region=task.region,
        lane=task.lane,
        start=trace.starts[wait],
        end=trace.ends[wait],
        reason=reason,
        cause=verdict.cause,
        blocker=trace.tasks[verdict.blocker].name if verdict.blocker >= 0 else "",
        host_sync=trace.tasks[reader].name if reader >= 0 else "",
    )


@dataclass(frozen=True, slots=True)
class _Verdict:
    cause: Cause
    reason: str
    blocker: int = -1


def _verdict(trace: Trace, wait: int, beside: Work | None, by_all_later: bool) -> _Verdict:
    """Weigh the causes of one stall as the module docstring says."""
    launch = trace.tasks[wait].launch
    transfer, came = trace.transfers[launch], source(trace, launch)
    shares: dict[Cause, float] = {
        "queue": transfer.queued,
        "link": transfer.end - transfer.start - trace.tasks[launch].duration,
        "early": beside.seconds if beside else 0.0,
        "order": 0.0 if transfer.queued else trace.starts[launch] - came.ready,
    }
    seconds = trace.ends[wait] - trace.starts[wait]
    shares = {cause: min(share, seconds) for cause, share in shares.items()}
    held_by_input = came.position >= 0 and not by_all_later
    shares["input" if held_by_input else "end"] = seconds - sum(shares.values())
    cause = max(shares, key=lambda key: shares[key])  # the first of equal ones
    if cause == "queue":
        return _named(trace, cause, "queued behind {}", queued_behind(trace, launch))
    if cause == "link":
        return _named(trace, cause, "shares the link with {}", shares_with(trace, launch))
    if cause == "early" and beside:
        return _named(trace, cause, "waited early: {} does not need it and runs after the wait", beside.first)
    ready = seconds_text(came.ready)
    if cause == "order":
        behind = issued_behind(trace, launch, came.ready)
        return _named(trace, cause, f"launched late: ready at {ready}, issued behind {{}}", behind)
    if cause == "input":
        host = ", a host synchronisation," if trace.tasks[came.position].kind == "host" else ","
        return _named(trace, cause, f"launched late: needs {{}}{host} which ended at {ready}", came.position)
    rest = "every later task needs it" if by_all_later else "what could run beside it has run"
    return _Verdict("end", f"nothing left to run: {rest}")


def _named(trace: Trace, cause: Cause, sentence: str, blocker: int) -> _Verdict:
    return _Verdict(cause, sentence.format(trace.tasks[blocker].label), blocker)
