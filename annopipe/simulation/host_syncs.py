"""Where the host has to know a number before it can go on: each host read, and the exchange whose result it reads.

Dropless routing exchanges how many tokens each rank sends, and the host reads the counts before it can launch the data.
Such a **count exchange** is a launch whose result a host task reads before the lane's next launch, directly or through
small computation: none of the computations between its wait and the read takes longer than the exchange itself.

A count exchange is small, but in the queue of its process group it stands behind the data. `own_group_saving` says what
the program would gain if all count exchanges had a process group of their own: the same program in the same order,
simulated once more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from annopipe.simulation.blockers import source
from annopipe.simulation.engine import makespan
from annopipe.simulation.trace import Trace
from annopipe.simulation.wording import place_text, seconds_text

__all__ = ["HostSync", "host_syncs", "own_group_saving"]


@dataclass(frozen=True, slots=True)
class HostSync:
    """One count exchange with the host tasks that read it, or host tasks that read what this rank computed itself.

    Times in seconds; reads of one lane and region with no launch or wait between them count as one.

    Attributes:
        exchange: name of the count exchange, "" if there is none.
        reads: names of the host tasks.
        region, lane: of the exchange, else of the reads.
        queue: process group of the exchange.
        ready: when its inputs were there: the earliest time at which it could have been issued.
        issued: when the thread issued it; without an exchange, when it began to read.
        blocked_from: when the thread first stalled for it, or else began to read.
        stalled: how long the thread stalled in waits for the exchange.
        reading: how long the host tasks took.
        queued: how long the exchange was behind others of its queue.
        behind: the data transfer of its queue that kept it there longest, "" if none did.
        exchange_position, read_positions: in the program; -1 without an exchange.

    >>> sync = HostSync("counts", ("item",), "moe/router", "F", "ep", 1.0, 1.5, 2.0, 0.5, 0.25, 1.0, "combine (B)")
    >>> sync.blocked, sync.late
    (0.75, 0.5)
    >>> sync.sentence
    'counts, read by item: ready at 1 s, issued 500 ms later, queued 1 s behind combine (B), stalled 500 ms'
    """

    exchange: str
    reads: tuple[str, ...]
    region: str
    lane: str
    queue: str
    ready: float
    issued: float
    blocked_from: float
    stalled: float
    reading: float
    queued: float
    behind: str
    exchange_position: int = -1
    read_positions: tuple[int, ...] = ()

    @property
    def blocked(self) -> float:
        """How long the thread could do nothing else: stalled and reading."""
        return self.stalled + self.reading

    @property
    def late(self) -> float:
        """How long it was ready before it was issued."""
        return self.issued - self.ready

    @property
    def place(self) -> str:
        """Lane and region; the name if it has neither."""
        return place_text(self.lane, self.region) or self.exchange or self.reads[0]

    @property
    def sentence(self) -> str:
        """What was read, when it was ready and issued, and what held it up."""
        more = f" and {len(self.reads) - 1} more" if len(self.reads) > 1 else ""
        what = f"{self.exchange}, read by {self.reads[0]}{more}" if self.exchange else f"{self.reads[0]}{more}"
        parts = [f"ready at {seconds_text(self.ready)}"]
        verb = "issued" if self.exchange else "read"
        parts.append(f"{verb} {seconds_text(self.late)} later" if self.late else f"{verb} at once")
        if self.queued:
            parts.append(f"queued {seconds_text(self.queued)} behind {self.behind or 'other count exchanges'}")
        if self.stalled:
            parts.append(f"stalled {seconds_text(self.stalled)}")
        return f"{what}: {', '.join(parts)}"


def host_syncs(trace: Trace) -> tuple[HostSync, ...]:
    """Every count exchange and every host read of a trace, in order of the first read.

    >>> from annopipe.simulation import Task, run
    >>> program = [
    ...     Task("combine", "launch", 2.0, queue="ep", lane="B"),
    ...     Task("counts", "launch", 0.5, queue="ep", lane="F"),
    ...     Task("wait", "wait", launch=1, lane="F"),
    ...     Task("item", "host", 0.1, lane="F", after=(2,)),
    ... ]
    >>> [(sync.exchange, sync.reads, sync.stalled, sync.behind) for sync in host_syncs(run(program).trace)]
    [('counts', ('item',), 2.5, 'combine (B)')]
    """
    exchanges: dict[int, list[int]] = {}
    alone: list[list[int]] = []
    for read, found in _reads(trace):
        for exchange in found:
            exchanges.setdefault(exchange, []).append(read)
        if not found:
            if alone and _together(trace, alone[-1][-1], read):
                alone[-1].append(read)
            else:
                alone.append([read])
    made = [_exchange_sync(trace, exchange, reads, exchanges) for exchange, reads in exchanges.items()]
    made += [_sync(trace, reads[0], reads) for reads in alone]
    return tuple(sorted(made, key=lambda sync: (sync.read_positions[0], sync.exchange_position)))


def own_group_saving(trace: Trace, syncs: Sequence[HostSync]) -> float:
    """Seconds of makespan that a process group of their own for the count exchanges would save, in the same order.

    Zero when none of them is queued behind data.

    >>> from annopipe.simulation import Task, run
    >>> program = [
    ...     Task("combine", "launch", 2.0, queue="ep", lane="B"),
    ...     Task("counts", "launch", 0.5, queue="ep", lane="F"),
    ...     Task("wait", "wait", launch=1, lane="F"),
    ...     Task("item", "host", 0.1, lane="F", after=(2,)),
    ...     Task("experts", "compute", 3.0, lane="F", after=(3,)),
    ... ]
    >>> trace = run(program).trace  # counts shares the link with combine and arrives at 1 s instead of 2.5 s
    >>> round(own_group_saving(trace, host_syncs(trace)), 6)
    1.5
    """
    if not any(sync.behind for sync in syncs):
        return 0.0
    tasks = list(trace.tasks)
    queues = {task.queue for task in tasks}
    for position in {sync.exchange_position for sync in syncs} - {-1}:
        own = f"counts of {tasks[position].queue}"
        while own in queues:
            own = f"{own}'"
        tasks[position] = replace(tasks[position], queue=own)
    return trace.makespan - makespan(tasks, trace.network)


def _reads(trace: Trace) -> Iterator[tuple[int, list[int]]]:
    """Each host task with the count exchanges that it reads: of each lane only the last launch can be one."""
    last: dict[str, int] = {}
    waits: dict[int, list[int]] = {}
    for position, task in enumerate(trace.tasks):
        if task.kind == "launch":
            last[task.lane] = position
        elif task.kind == "wait":
            waits.setdefault(task.launch, []).append(position)
        elif task.kind == "host":
            yield position, sorted(p for p in last.values() if _reaches(trace, position, p, waits.get(p, ())))


def _reaches(trace: Trace, read: int, exchange: int, waits: Sequence[int]) -> bool:
    """Whether the result of an exchange comes to a host read through nothing but small computation."""
    longest = trace.tasks[exchange].duration
    ahead, seen = [read], {read}
    while ahead and waits:
        for needed in trace.tasks[ahead.pop()].after:
            if needed in waits:
                return True
            task = trace.tasks[needed]
            if needed > exchange and needed not in seen and task.kind == "compute" and task.duration <= longest:
                seen.add(needed)
                ahead.append(needed)
    return False


def _together(trace: Trace, one: int, other: int) -> bool:
    """Whether two host tasks are of one place, with no launch or wait between them."""
    a, b = trace.tasks[one], trace.tasks[other]
    same = (a.lane, a.region) == (b.lane, b.region)
    return same and all(task.kind in ("compute", "host") for task in trace.tasks[one:other])


def _sync(trace: Trace, subject: int, reads: Sequence[int]) -> HostSync:
    """What holds for reads with and without an exchange; the subject is the exchange, else the first read."""
    task = trace.tasks[subject]
    return HostSync(
        exchange="",
        reads=tuple(trace.tasks[read].name for read in reads),
        region=task.region,
        lane=task.lane,
        queue="",
        ready=source(trace, subject).ready,
        issued=trace.starts[subject],
        blocked_from=trace.starts[reads[0]],
        stalled=0.0,
        reading=sum(trace.ends[read] - trace.starts[read] for read in reads),
        queued=0.0,
        behind="",
        read_positions=tuple(reads),
    )


def _exchange_sync(trace: Trace, exchange: int, reads: Sequence[int], exchanges: dict[int, list[int]]) -> HostSync:
    transfer, task = trace.transfers[exchange], trace.tasks[exchange]
    stalls = [wait for wait in trace.stalled if trace.tasks[wait].launch == exchange and wait < reads[-1]]
    ahead = {}
    for position, other in trace.transfers.items():
        beside = min(other.end, transfer.start) - max(other.start, transfer.launched)
        if beside > 0 and trace.tasks[position].queue == task.queue and position not in exchanges:
            ahead[position] = beside
    sync = _sync(trace, exchange, reads)
    return replace(
        sync,
        exchange=task.name,
        queue=task.queue,
        blocked_from=trace.starts[stalls[0]] if stalls else sync.blocked_from,
        stalled=sum(trace.ends[wait] - trace.starts[wait] for wait in stalls),
        queued=transfer.queued,
        behind=trace.tasks[max(ahead, key=lambda position: ahead[position])].label if ahead else "",
        exchange_position=exchange,
    )
