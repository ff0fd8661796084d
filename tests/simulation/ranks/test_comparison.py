import pytest

from annopipe.errors import ScheduleError
from annopipe.simulation.ranks.comparison import compare
from tests.simulation.ranks.schedules import empty, one_f_one_b, simulate, zero_bubble


def timelines():
    return {
        "1f1b": simulate("1f1b", one_f_one_b(4, 8), send=0.25, latency=0.25),
        "zb-h1": simulate("zb-h1", zero_bubble(4, 8)),
    }


def test_one_row_per_schedule_relative_to_the_shortest():
    assert compare(timelines()).splitlines() == [
        "schedule  makespan  to best  bubble  window  peak memory  messages  communication  exposed",
        "1f1b          41 s   +51.9%   41.5%    41 s            4        48           12 s      0 s",
        "zb-h1         27 s        -   11.1%    27 s            4        48            0 s      0 s",
    ]


def test_a_baseline_can_be_named():
    lines = compare(timelines(), baseline="1f1b").splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["-", "-34.1%"]
    assert "to 1f1b" in lines[0]


def test_ranks_are_shown_where_they_differ():
    lines = compare({"four": simulate("a", one_f_one_b(4, 8)), "two": simulate("b", one_f_one_b(2, 8))}).splitlines()
    assert [line.split()[-1] for line in lines] == ["ranks", "4", "2"]


def test_schedules_that_take_no_time_compare_as_equal():
    assert compare({"a": empty(), "b": empty()}).splitlines()[2].split()[:4] == ["b", "0", "s", "-"]


def test_nothing_to_compare_is_refused():
    with pytest.raises(ScheduleError, match="no timelines to compare; give a mapping"):
        compare({})


def test_an_unknown_baseline_is_refused_with_the_names():
    with pytest.raises(ScheduleError, match="no timeline is called 'gpipe'; the names are 1f1b, zb-h1"):
        compare(timelines(), baseline="gpipe")
