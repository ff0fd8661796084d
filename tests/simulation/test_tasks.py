import math

import pytest

from annopipe.errors import CostError, GraphError, OrderError
from annopipe.simulation import Network, Task, check_program, run

LAUNCH = Task("exchange", "launch", 2.0, queue="ep")


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize("kind", ["compute", "launch", "host"])
def test_duration_must_be_finite_and_not_negative(kind, seconds):
    task = Task("mm", kind, seconds, region="block0/attention", lane="F")
    with pytest.raises(CostError, match=r"task 0, mm \(F/block0/attention\), has duration .*; give seconds, finite"):
        run([task])


@pytest.mark.parametrize("latency", [-0.5, 2.5, math.nan])
def test_latency_is_a_part_of_the_duration(latency):
    with pytest.raises(CostError, match=r"task 0, exchange, has latency .* give 0 <= latency <= duration"):
        run([Task("exchange", "launch", 2.0, latency=latency)])


@pytest.mark.parametrize("issue", [-0.5, math.inf, math.nan])
def test_issue_time_must_be_finite_and_not_negative(issue):
    with pytest.raises(CostError, match=r"task 0, exchange, has issue time .*; give seconds"):
        run([Task("exchange", "launch", 2.0, issue=issue)])


@pytest.mark.parametrize("task", [Task("mm", "compute", 1.0, issue=0.5), Task("item", "host", 1.0, latency=0.5)])
def test_only_a_launch_has_latency_and_issue_time(task):
    with pytest.raises(CostError, match="only a launch has them, put it in duration"):
        run([task])


def test_wait_takes_no_time_of_its_own():
    with pytest.raises(CostError, match=r"task 1, wait, has duration 1\.0; a wait takes no time of its own, give 0"):
        run([LAUNCH, Task("wait", "wait", 1.0, launch=0)])


@pytest.mark.parametrize("launch", [-1, 0, 1, 7])
def test_wait_comes_after_its_launch(launch):
    with pytest.raises(
        OrderError, match=rf"task 0, wait, waits for position {launch}, .* put the launch before its wait"
    ):
        run([Task("wait", "wait", launch=launch), LAUNCH])


def test_wait_is_for_a_launch():
    with pytest.raises(
        OrderError, match=r"task 1, wait, waits for mm \(F\) at position 0, a compute task; give the position"
    ):
        run([Task("mm", "compute", 1.0, lane="F"), Task("wait", "wait", launch=0)])


@pytest.mark.parametrize("needed", [-1, 0, 5])
def test_task_comes_after_what_it_uses(needed):
    with pytest.raises(OrderError, match=rf"task 0, mm, uses the result of position {needed}, .* before it"):
        run([Task("mm", "compute", 1.0, after=(needed,))])


def test_unknown_kind_is_refused():
    with pytest.raises(GraphError, match="task 0, mm, has kind 'matmul'; use compute, launch, wait or host"):
        check_program([Task("mm", "matmul", 1.0)])  # type: ignore[arg-type]


def test_at_least_one_transfer_is_in_flight():
    with pytest.raises(CostError, match=r"in_flight=0.*give a whole number, 1 or more"):
        Network(in_flight=0)


@pytest.mark.parametrize("interference", [-0.1, math.inf, math.nan, "much", True])
def test_interference_is_a_finite_number_that_is_not_negative(interference):
    with pytest.raises(CostError, match=r"Network\(interference=.*give a finite number that is not negative"):
        Network(interference=interference)


def test_label_says_where_a_task_is():
    assert Task("mm", "compute").label == "mm"
    assert Task("mm", "compute", lane="F").label == "mm (F)"
    assert Task("mm", "compute", region="block0/attention").label == "mm (block0/attention)"


def test_tasks_cannot_be_changed():
    with pytest.raises(AttributeError):
        LAUNCH.duration = 3.0  # type: ignore[misc]
