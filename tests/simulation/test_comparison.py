import re

import pytest

from annopipe.errors import GraphError
from annopipe.simulation import Network, Task, compare, run
from tests.simulation.programs import overlapped

EXCHANGE = Task("x", "launch", 2.0, "moe/dispatch", "F")
REDUCE = Task("r", "launch", 1.0, "reduce", "B", queue="dp")
PRODUCT = Task("mm", "compute", 1.5)
WAIT = Task("w", "wait", launch=0)


def test_hidden_and_exposed_of_each_region_stand_side_by_side():
    text = compare({"one": run([EXCHANGE, WAIT, PRODUCT]), "two": run([EXCHANGE, PRODUCT, WAIT, REDUCE])})
    assert text.splitlines() == [
        "                                one              two",
        "lane  region        hidden  exposed  hidden  exposed",
        "F     moe/dispatch     0 s      2 s   1.5 s   500 ms",
        "B     reduce             -        -     0 s      1 s",
        "      together         0 s      2 s   1.5 s    1.5 s",
        "      hidden share      0%              50%",
        "      makespan       3.5 s     100%     3 s      86%",
    ]


def test_long_name_widens_its_columns_and_a_longer_one_is_cut():
    long = "list, skewed routing, much of it"
    head, columns, *_ = compare({"list, skewed routing": run(overlapped()), long: run(overlapped())}).splitlines()
    assert re.split(r" {2,}", head)[-2:] == ["list, skewed routing", "..ed routing, much of it"]
    assert len(head) == len(columns)


def test_each_row_agrees_with_its_timeline():
    timelines = {"one": run(overlapped()), "shared": run(overlapped(), Network(in_flight=2))}
    rows = compare(timelines).splitlines()
    assert [row.split()[1] for row in rows[2:6]] == [region.region for region in timelines["one"].regions]
    assert rows[-1].split() == ["makespan", "17.75", "s", "100%", "18.25", "s", "103%"]


def test_timelines_without_time_or_communication_can_be_compared():
    assert compare({"": run([])}).splitlines()[-1].split() == ["makespan", "0", "s"]


def test_nothing_to_compare_is_refused():
    with pytest.raises(GraphError, match="no timelines to compare; give a mapping from names to timelines"):
        compare({})
