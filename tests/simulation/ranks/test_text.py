from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import AnnopipeError
from annopipe.simulation.ranks.text import render
from tests.simulation.ranks.schedules import (
    Drawn,
    empty,
    nano_batched,
    one_f_one_b,
    simulate,
    v_shape,
    with_operations,
    zero_bubble,
)

GOLDEN = {
    "one_f_one_b": lambda: simulate("1f1b", one_f_one_b(4, 8)),
    "zero_bubble": lambda: simulate("zb-h1", zero_bubble(4, 8)),
    "v_shape": lambda: simulate("v", v_shape(3, 3)),
    "uneven": lambda: simulate("1f1b", one_f_one_b(3, 11), latency=2**0.5 / 10),
    "letters": lambda: simulate("zb-h1", zero_bubble(8, 100)),
    "letters_of_v": lambda: simulate("v", v_shape(8, 24)),
    "operations": with_operations,
    "nano_batches": nano_batched,
}
KINDS = {"1f1b": one_f_one_b, "zb-h1": zero_bubble, "v": v_shape}


def rows(drawing: str, ranks: int) -> list[str]:
    """The drawn part of each rank's row, its bands joined."""
    lines = drawing.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("rank "))
    margin = lines[head].index("peak") + len("peak  ")
    found = [""] * ranks
    for line in lines[head + 1 :]:
        number = line[:margin].split()[:1]
        if line.startswith("  ") and number:
            found[int(number[0])] += line[margin:]
    return found


@pytest.mark.parametrize("name", GOLDEN)
def test_drawing_is_the_one_in_the_file(name):
    assert f"{render(GOLDEN[name]())}\n" == Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 6),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.5, 0.1, 1 / 3]),
    st.integers(60, 200),
)
def test_no_line_is_longer_than_the_width(kind, ranks, microbatches, latency, width):
    drawing = render(simulate(kind, KINDS[kind](ranks, microbatches), latency=latency), width)
    assert max(map(len, drawing.splitlines())) <= width


@pytest.mark.parametrize("kind", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 12), (4, 8), (4, 3)])
def test_every_microbatch_has_its_number_in_order(kind, ranks, microbatches):
    timeline = simulate(kind, KINDS[kind](ranks, microbatches))
    for rank, row in enumerate(rows(render(timeline), ranks)):
        shown = [word.strip("-") for word in row.replace(".", " ").split()]
        assert shown == [span.text.partition(str(rank))[2].lstrip("F") for span in timeline.spans[rank]]


def test_equal_times_are_equally_wide_where_times_have_a_unit():
    (row,) = rows(render(simulate("1f1b", one_f_one_b(1, 3))), 1)
    assert row == "0 B0- 1 B1- 2 B2-"


def test_letters_are_in_proportion_to_the_time_they_take():
    timeline = simulate("1f1b", one_f_one_b(8, 500))
    for rank, row in enumerate(rows(render(timeline, 200), 8)):
        assert abs(row.count("B") / len(row) - 2 * 500 / timeline.makespan) < 0.02
        assert abs(row.count(".") / len(row) - timeline.bubbles[rank]) < 0.02


def test_sixty_four_ranks_and_a_thousand_microbatches_fit():
    drawing = render(simulate("zb-h1", zero_bubble(64, 1024)))
    assert len(drawing.splitlines()) < 75
    assert max(map(len, drawing.splitlines())) <= 100


def test_a_schedule_that_takes_no_time_has_only_its_numbers():
    assert render(empty()) == "empty, 2 ranks\nmakespan 0 s   bubble 0.0%   peak memory 0"


def test_a_long_name_with_line_breaks_keeps_to_one_line():
    timeline: Drawn = replace(simulate("x", one_f_one_b(1, 1)), name="a\nb " * 60)
    assert render(timeline).splitlines()[0].startswith("a b a b")
    assert len(render(timeline).splitlines()[0]) <= 100


def test_a_number_and_its_unit_stay_on_one_line():
    timeline = replace(simulate("x", one_f_one_b(2, 2)), exposed_comm=0.021)
    assert render(timeline, 80).splitlines()[1].endswith("exposed communication 21 ms")
    assert render(timeline, 68).splitlines()[2] == "exposed communication 21 ms"


def test_a_width_that_is_too_small_is_refused():
    with pytest.raises(AnnopipeError, match="cannot draw '1f1b' in 39 columns: give a width of 40 or more"):
        render(simulate("1f1b", one_f_one_b(2, 2)), 39)
