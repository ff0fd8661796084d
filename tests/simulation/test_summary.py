from annopipe.simulation import Network, Task, run
from annopipe.simulation.summary import key_numbers, own_group_advice
from tests.simulation.programs import overlapped


def test_times_that_are_zero_are_left_out():
    assert key_numbers(run([])) == [("makespan", "0 s"), ("computation", "0 s")]
    assert [name for name, _ in key_numbers(run(overlapped(), Network(interference=0.5)))] == [
        "makespan",
        "computation",
        "interference",
        "host",
        "issue",
    ]


def test_no_advice_without_a_count_exchange_behind_data():
    assert own_group_advice(run([Task("x", "launch", 1.0)])) == ""
