"""Random programs, and a few written by hand, that several tests share."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from annopipe.simulation import Network, Task

if TYPE_CHECKING:
    from annopipe.simulation.tasks import Kind

LANES, QUEUES, REGIONS = ("F", "B"), ("ep", "dp"), ("attention", "moe/dispatch", "moe/combine")
# Interference that keeps quarters exact, so that equal times stay equal.
NETWORKS = st.builds(
    Network, in_flight=st.integers(1, 3), shared_link=st.booleans(), interference=st.sampled_from([0.0, 0.0, 1.0, 3.0])
)
_STEPS = st.tuples(
    st.sampled_from(["compute", "launch", "launch", "host", "wait", "wait"]),
    st.integers(0, 12),  # duration in quarters: exact in floating point, so that equal times stay equal
    st.sampled_from([0, 0, 1, 2, 4]),  # latency
    st.sampled_from([0, 0, 1]),  # issue time
    st.integers(0, 11),  # lane, queue and region
    st.lists(st.integers(0, 20), max_size=2),  # what it uses, as distances back
    st.integers(0, 5),  # which launch a wait is for, counted back
)


def programs(max_size: int = 22) -> st.SearchStrategy[list[Task]]:
    """Legal programs: launches with and without latency and issue time, and any waits, none or several for a launch."""
    # Lists of a drawn size: by themselves they stay short, and short programs hardly stall.
    sizes = st.integers(0, max_size)
    return sizes.flatmap(lambda size: st.lists(_STEPS, min_size=size, max_size=size)).map(_program)


def _program(steps: list[tuple[Any, ...]]) -> list[Task]:
    tasks: list[Task] = []
    for position, (kind, quarters, latency, issue, place, back, which) in enumerate(steps):
        launches = [p for p, task in enumerate(tasks) if task.kind == "launch"]
        possible: Kind = "compute" if kind == "wait" and not launches else kind
        task = Task(
            f"{possible}{position}",
            possible,
            duration=0.0 if possible == "wait" else quarters / 4,
            lane=LANES[place % 2],
            region=REGIONS[place % 3],
            after=tuple(position - 1 - distance for distance in back if distance < position),
        )
        if possible == "wait":
            task = replace(task, launch=launches[-1 - which % len(launches)])
        if possible == "launch":
            task = replace(task, queue=QUEUES[place // 6], latency=min(latency, quarters) / 4, issue=issue / 4)
        tasks.append(task)
    return tasks


def overlapped() -> list[Task]:
    """A forward beside a backward: every kind of task, two queues, stalls, a host read."""
    return [
        Task("combine_b", "launch", 4.0, "block1/moe/combine", "B", "input_grad", queue="ep"),
        Task("attention", "compute", 3.0, "block0/attention", "F", "forward"),
        Task("counts", "launch", 0.5, "block0/moe/router", "F", "forward", queue="ep", issue=0.25, after=(1,)),
        Task("wait_combine_b", "wait", lane="B", launch=0, after=(0,)),
        Task("experts_b", "compute", 2.0, "block1/moe/experts", "B", "input_grad", after=(3,)),
        Task("wait_counts", "wait", lane="F", launch=2, after=(2,)),
        Task("item", "host", 0.25, "block0/moe/router", "F", "forward", after=(5,)),
        Task("dispatch", "launch", 6.0, "block0/moe/dispatch", "F", "forward", queue="ep", latency=0.5, after=(1, 6)),
        Task("experts_w", "compute", 2.0, "block1/moe/experts", "B", "weight_grad", after=(3,)),
        Task("reduce", "launch", 3.0, "block1/reduce", "B", "weight_grad", queue="dp", after=(8,)),
        Task("wait_dispatch", "wait", lane="F", launch=7, after=(7,)),
        Task("experts", "compute", 2.5, "block0/moe/experts", "F", "forward", after=(10,)),
        Task("wait_reduce", "wait", lane="B", launch=9, after=(9,)),
    ]
