"""What the event simulation runs: the program of one rank, as plain data, and the network it runs on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from annopipe.errors import CostError, GraphError, OrderError

__all__ = ["Kind", "Network", "Task", "check_program"]

Kind = Literal["compute", "launch", "wait", "host"]


@dataclass(frozen=True, slots=True)
class Task:
    """One step of the thread that issues a rank's work: computation, launch of a transfer, wait for one, or host work.

    All times are seconds. Positions count from 0 in the program that holds the task. A task is not checked when it is
    made (a program has thousands); `run` checks the whole program and names the task that is wrong.

    Attributes:
        name: what messages call the task; a graph node's name.
        kind: "compute" and "host" occupy the thread for `duration`. "launch" starts a transfer and "wait" blocks the
            thread until the transfer of its launch has finished.
        duration: for "compute" and "host" the time on the thread, for "launch" the time of the transfer when it has the
            link to itself, for "wait" 0.
        region: full path of the region, such as "block3/moe/dispatch".
        lane: the lane, such as "F" or "B".
        phase: "forward", "input_grad", "weight_grad", "recompute" or "other".
        queue: launches only, the process group whose in-order queue carries the transfer.
        launch: waits only, position of the launch waited for.
        latency: launches only, the part of `duration` that does not stretch when the link is shared.
        issue: launches only, time the thread spends to start the transfer.
        after: positions of the tasks whose results this one uses, all of them earlier. They do not change the time
            (the thread runs the tasks in order); they explain what holds a stall where it is.

    >>> exchange = Task("all_to_all", "launch", 2e-3, region="block0/moe/dispatch", lane="F", queue="ep")
    >>> Task("wait_tensor", "wait", launch=0, lane="F").duration
    0.0
    """

    name: str
    kind: Kind
    duration: float = 0.0
    region: str = ""
    lane: str = ""
    phase: str = ""
    queue: str = ""
    launch: int = -1
    latency: float = 0.0
    issue: float = 0.0
    after: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The name with lane and region, as messages write it.

        >>> Task("mm", "compute", 1e-3, region="block0/attention", lane="F").label
        'mm (F/block0/attention)'
        """
        place = "/".join(part for part in (self.lane, self.region) if part)
        return f"{self.name} ({place})" if place else self.name


@dataclass(frozen=True, slots=True)
class Network:
    """How transfers share the network.

    Attributes:
        in_flight: how many transfers of one queue move at the same time. NCCL runs one after the other; gloo works on
            two, but sends both over one connection per peer, in order, so one after the other describes it best.
        shared_link: True: the transfers of all queues share one link in equal parts. False: each queue has its own.
        interference: computation takes (1 + interference) times as long while a transfer of this rank moves, on any
            link, its latency included: on a CPU gloo's threads take processor time, on a GPU NCCL takes multiprocessors
            and memory bandwidth. Host tasks and the issuing of transfers do not slow down.

    Raises CostError when `in_flight` is less than 1, or `interference` negative or not finite.

    >>> Network(in_flight=2)
    Network(in_flight=2, shared_link=True, interference=0.0)
    """

    in_flight: int = 1
    shared_link: bool = True
    interference: float = 0.0

    def __post_init__(self) -> None:
        whole = isinstance(self.in_flight, int) and self.in_flight >= 1
        if not whole or not isinstance(self.shared_link, bool):
            raise CostError(
                f"Network(in_flight={self.in_flight}, shared_link={self.shared_link}): at least one transfer of a "
                "queue must move: give a whole number, 1 or more, and True or False"
            )
        number = isinstance(self.interference, int | float) and not isinstance(self.interference, bool)
        if not number or not 0.0 <= self.interference < math.inf:
            raise CostError(
                f"Network(interference={self.interference!r}): computation takes (1 + interference) times as long "
                "while a transfer moves; give a finite number that is not negative, such as 0.16 for 16% longer"
            )


def check_program(tasks: Sequence[Task]) -> None:
    """Refuse a program that cannot be simulated; the message names the task and the remedy.

    Raises CostError for a time that is negative, not finite or in the wrong place, OrderError for a task that comes
    before what it needs, GraphError for an unknown kind.

    >>> check_program([Task("mm", "compute", 1.0), Task("exchange", "launch", 2.0), Task("wait", "wait", launch=1)])
    """
    for position, task in enumerate(tasks):
        # One comparison refuses negative, infinite and not-a-number alike.
        if not 0.0 <= task.duration < math.inf:
            raise CostError(
                f"{_place(position, task)} has duration {task.duration}; give seconds, finite and not negative"
            )
        for needed in task.after:
            if not 0 <= needed < position:
                raise OrderError(
                    f"{_place(position, task)} uses the result of position {needed}, which is not an earlier task; "
                    "put what a task needs before it"
                )
        if task.kind == "launch":
            _check_launch(position, task)
        elif task.latency or task.issue:
            raise CostError(
                f"{_place(position, task)} has latency or issue time; only a launch has them, put it in duration"
            )
        elif task.kind == "wait":
            _check_wait(position, task, tasks)
        elif task.kind not in ("compute", "host"):
            raise GraphError(f"{_place(position, task)} has kind {task.kind!r}; use compute, launch, wait or host")


def _check_launch(position: int, task: Task) -> None:
    if not 0.0 <= task.latency <= task.duration:
        raise CostError(
            f"{_place(position, task)} has latency {task.latency} and duration {task.duration}; "
            "latency is a part of the duration, so give 0 <= latency <= duration"
        )
    if not 0.0 <= task.issue < math.inf:
        raise CostError(f"{_place(position, task)} has issue time {task.issue}; give seconds, finite and not negative")


def _check_wait(position: int, task: Task, tasks: Sequence[Task]) -> None:
    if task.duration:
        raise CostError(
            f"{_place(position, task)} has duration {task.duration}; a wait takes no time of its own, give 0"
        )
    if not 0 <= task.launch < position:
        raise OrderError(
            f"{_place(position, task)} waits for position {task.launch}, which is not an earlier task; "
            "put the launch before its wait"
        )
    if tasks[task.launch].kind != "launch":
        found = tasks[task.launch]
        raise OrderError(
            f"{_place(position, task)} waits for {found.label} at position {task.launch}, a {found.kind} task; "
            "give the position of the launch"
        )


def _place(position: int, task: Task) -> str:
    return f"task {position}, {task.label},"
