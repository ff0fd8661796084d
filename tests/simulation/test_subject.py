import pytest

from annopipe.errors import CostError, GraphError
from annopipe.simulation import Network, Task, run, simulate

PROGRAM = [Task("x", "launch", 2.0, queue="ep"), Task("y", "launch", 2.0, queue="ep"), Task("w", "wait", launch=0)]


class Plan:
    def program(self, costs: float = 2.0) -> list[Task]:
        return [Task("x", "launch", costs, queue="ep"), *PROGRAM[1:]]


class Fixed:
    def program(self) -> tuple[Task, ...]:
        return tuple(PROGRAM)


def test_anything_with_a_program_is_simulated():
    assert simulate(Plan()) == simulate(Fixed()) == run(PROGRAM)


def test_costs_reach_the_program():
    assert simulate(Plan(), 5.0).makespan == 7.0
    assert simulate(Plan(), costs=0.0).makespan == 2.0


def test_network_is_passed_on():
    assert simulate(Plan(), network=Network(in_flight=2)) == run(PROGRAM, Network(in_flight=2))


@pytest.mark.parametrize(("subject", "found"), [(PROGRAM, "a list"), (Plan, "the class Plan"), (None, "a NoneType")])
def test_what_cannot_be_simulated_is_refused_with_what_can(subject, found):
    with pytest.raises(GraphError, match=rf"cannot simulate {found}; give an OverlapPlan .* sequence of annopipe"):
        simulate(subject)


def test_errors_of_the_program_name_the_task():
    with pytest.raises(CostError, match="task 0, x, has duration -1"):
        simulate(Plan(), -1)


def test_a_network_of_another_kind_is_refused():
    with pytest.raises(CostError, match=r"network is 3: give an annopipe\.simulation\.Network"):
        simulate(Plan(), network=3)
