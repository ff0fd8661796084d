"""The event simulation: one thread that runs a program in order, and a network that carries what it launches.

    thread    | launch a | compute | launch b | wait a ..stall.. | compute | wait b |
    queue          | a moves ............................| b moves ........|

The thread runs the tasks in order. "compute" and "host" advance its clock by their duration. "launch" advances it by
the issue time, and then the transfer enters its queue. "wait" advances it to the end of the transfer, if that is still
ahead. A queue starts its transfers in order and moves at most `Network.in_flight` of them at the same time. A transfer
first spends its latency, at full speed and without a share of the link, and then the rest of its duration as work for
the link; the link gives each of the n transfers that are past their latency 1/n of its speed.
"""

from collections.abc import Iterable, Sequence

from annopipe.errors import OrderError
from annopipe.simulation.links import Carrier, carrier
from annopipe.simulation.tasks import Network, Task, check_program
from annopipe.simulation.timeline import Timeline
from annopipe.simulation.trace import Trace, Transfer

__all__ = ["makespan", "run"]

_DEFAULT = Network()


def run(tasks: Sequence[Task], network: Network = _DEFAULT) -> Timeline:
    """Simulate a program and keep everything that happened.

    All times are seconds. Raises CostError, OrderError or GraphError for a program that cannot run; the message names
    the task and what to do.

    >>> program = [
    ...     Task("exchange", "launch", 3.0, queue="ep"),
    ...     Task("attention", "compute", 2.0),
    ...     Task("wait", "wait", launch=0, after=(0,)),
    ... ]
    >>> timeline = run(program)
    >>> timeline.makespan, timeline.exposed_comm, timeline.hidden_comm
    (3.0, 1.0, 2.0)
    """
    program = tuple(tasks)
    check_program(program)
    links = carrier(program, network)
    size = len(program)
    starts, ends = [0.0] * size, [0.0] * size
    launched: dict[int, float] = {}
    clock = 0.0
    for position, task in enumerate(program):
        starts[position] = clock
        clock = _advance(clock, position, task, links)
        ends[position] = clock
        if task.kind == "launch":
            launched[position] = clock
    links.drain()
    transfers = {p: Transfer(at, links.starts[p], links.ends[p]) for p, at in launched.items()}
    return Timeline(Trace(program, network, tuple(starts), tuple(ends), transfers))


def makespan(tasks: Sequence[Task], network: Network = _DEFAULT, order: Iterable[int] | None = None) -> float:
    """Only the makespan, in seconds: for a search that compares many orders of one program.

    `order` lists positions in `tasks`; `Task.launch` stays a position in `tasks`, so the tasks are made once. The
    program is not checked (check it once with `check_program`) and an order may leave tasks out.

    Raises OrderError when the order puts a wait before its launch.

    >>> program = [Task("exchange", "launch", 3.0), Task("wait", "wait", launch=0), Task("attention", "compute", 2.0)]
    >>> makespan(program), makespan(program, order=[0, 2, 1])
    (5.0, 3.0)
    """
    links = carrier(tasks, network)
    clock = 0.0
    try:
        for position in range(len(tasks)) if order is None else order:
            clock = _advance(clock, position, tasks[position], links)
    except KeyError:
        raise OrderError(
            f"task {position}, {tasks[position].label}, waits for a launch that the order has not issued yet; "
            "put the launch before its wait"
        ) from None
    links.drain()
    return max(clock, max(links.ends.values(), default=0.0))


def _advance(clock: float, position: int, task: Task, links: Carrier) -> float:
    """Run one task on the thread at time `clock`; return when the thread is free again."""
    if task.kind == "launch":
        clock += task.issue
        links.enter(position, task, clock)
        return clock
    if task.kind == "wait":
        return max(clock, links.finish(task.launch))
    return clock + task.duration
