"""The event simulation: one thread that runs a program in order, and a network that carries what it launches.

    thread    | launch a | compute | launch b | wait a ..stall.. | compute | wait b |
    queue          | a moves ............................| b moves ........|

The thread runs the tasks in order. "compute" and "host" advance its clock by their duration. "launch" advances it by
the issue time, and then the transfer enters its queue. "wait" advances it to the end of the transfer, if that is still
ahead. A queue starts its transfers in order and moves at most `Network.in_flight` of them at the same time. A transfer
first spends its latency, at full speed and without a share of the link, and then the rest of its duration as work for
the link; the link gives each of the n transfers that are past their latency 1/n of its speed.

With `Network.interference` computation runs slower while any transfer moves. Nothing is launched during a computation,
so what moves when it begins moves on without a gap until every queue is empty: the computation is slow up to that
moment and at full speed from then on.
"""

from collections.abc import Callable, Iterable, Sequence

from annopipe.errors import OrderError
from annopipe.simulation.links import Carrier, carrier
from annopipe.simulation.tasks import Network, Task
from annopipe.simulation.trace import Trace, Transfer

__all__ = ["makespan", "record"]

_DEFAULT = Network()

_Advance = Callable[[float, int, Task, Carrier], float]


def record(program: tuple[Task, ...], network: Network) -> Trace:
    """Simulate a program that has been checked, and keep everything that happened.

    >>> program = (Task("x", "launch", 3.0), Task("mm", "compute", 2.0), Task("wait", "wait", launch=0))
    >>> record(program, Network()).starts, record(program, Network(interference=0.25)).starts
    ((0.0, 0.0, 2.0), (0.0, 0.0, 2.5))
    """
    links = carrier(program, network)
    advance = _advance_for(network)
    size = len(program)
    starts, ends = [0.0] * size, [0.0] * size
    launched: dict[int, float] = {}
    clock = 0.0
    for position, task in enumerate(program):
        starts[position] = clock
        clock = advance(clock, position, task, links)
        ends[position] = clock
        if task.kind == "launch":
            launched[position] = clock
    links.drain()
    transfers = {p: Transfer(at, links.starts[p], links.ends[p]) for p, at in launched.items()}
    return Trace(program, network, tuple(starts), tuple(ends), transfers)


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
    advance = _advance_for(network)
    clock = 0.0
    try:
        for position in range(len(tasks)) if order is None else order:
            clock = advance(clock, position, tasks[position], links)
    except KeyError:
        raise OrderError(
            f"task {position}, {tasks[position].label}, waits for a launch that the order has not issued yet; "
            "put the launch before its wait"
        ) from None
    links.drain()
    return max(clock, max(links.ends.values(), default=0.0))


def _advance_for(network: Network) -> _Advance:
    """How the thread's clock advances on this network; without interference nothing is paid for it."""
    if not network.interference:
        return _advance
    slowness = 1.0 + network.interference

    def advance(clock: float, position: int, task: Task, links: Carrier) -> float:
        if task.kind == "compute":
            return _compute_beside(clock, task.duration, slowness, links)
        return _advance(clock, position, task, links)

    return advance


def _advance(clock: float, position: int, task: Task, links: Carrier) -> float:
    """Run one task on the thread at time `clock`; return when the thread is free again."""
    if task.kind == "launch":
        clock += task.issue
        links.enter(position, task, clock)
        return clock
    if task.kind == "wait":
        return max(clock, links.finish(task.launch))
    return clock + task.duration


def _compute_beside(clock: float, duration: float, slowness: float, links: Carrier) -> float:
    """The end of a computation that begins at time `clock` and is slow while anything moves."""
    slowest = clock + duration * slowness
    idle = links.idle_from(slowest)
    if idle <= clock:
        return clock + duration
    if idle >= slowest:
        return slowest
    # Rounding must not leave less than nothing to do.
    return idle + max(0.0, duration - (idle - clock) / slowness)
