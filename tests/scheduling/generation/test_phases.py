import re
import time

import pytest

from annopipe.errors import ScheduleError
from annopipe.scheduling.generation.phases import RankWork, lay_out, parse_phases

VALUES = {"p": 4, "r": 1, "m": 3, "v": 2}
ALL = [(s, k) for k in range(3) for s in (0, 5)]
WORK = RankWork((0, 5), ALL, [(s, k) for k in range(3) for s in (5, 0)])


def laid_out(*lines, work=WORK):
    return " ".join(str(action) for action, _ in lay_out(parse_phases(lines), work, VALUES))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("F B", "'F B' in 'F B' is not a phase; write a count, a colon and tokens: 'p - r: F B'"),
        ("m :", "'m :' in 'm :' is not a phase"),
        ("m : F; r", "'r' in 'm : F; r' is not a phase"),
        ("m : F G", "'G' in 'm : F G' is not a token; write F, B, I or W, F1 for a chunk, F0&B1 for a pair"),
        ("m : F&", "'' in 'm : F&' is not a token"),
        ("m : f", "'f' in 'm : f' is not a token"),
        ("m : F-1", "'F-1' in 'm : F-1' is not a token"),
        ("m : F12345", "'F12345' in 'm : F12345' is not a token"),
        ("m : F:B", "'F:B' in 'm : F:B' is not a token"),
        (": F", "the count of ': F' in ': F': '' is not a formula"),
        ("x : F", "the count of 'x : F' in 'x : F': 'x' in 'x' is not known here; use whole numbers, p, r, m, v, "),
        ("k : F", "'k' in 'k' is not known here"),
        ("** : F", "'**' is not a formula"),
    ],
)
def test_what_is_no_phase_is_refused_with_its_line(line, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        parse_phases([line])


def test_lines_hold_several_phases_and_empty_ones_none():
    phases = parse_phases(["m : F; ; * : B0&F1 W", ""])
    assert [(phase.text, phase.count is None) for phase in phases] == [("m : F", False), ("* : B0&F1 W", True)]
    assert phases[1].steps == ((("B", 0), ("F", 1)), (("W", -1),))


def test_tokens_take_the_next_of_their_chunk_or_of_any():
    found = laid_out("2 : F1; 1 : F F0&B1; * : F; * : B")
    assert found == "5F0 5F1 0F0 (0F1;5B0)OVERLAP_F_B 0F2 5F2 0B0 5B1 0B1 5B2 0B2"


def test_weights_follow_in_the_order_of_their_inputs():
    assert laid_out("* : F", "1 : B I0 I1 W1 W", "* : I B", "* : W").split()[6:] == (
        ["5B0", "0I0", "5I1", "5W1", "0W0", "0I1", "5B2", "0I2", "0W1", "0W2"]
    )


def test_what_is_not_there_is_left_out():
    one = RankWork((0,), [(0, 0)], [(0, 0)])
    assert laid_out("9 : F W; 2 : F&B; * : F B", work=one) == "0F0 0B0"
    assert laid_out("r - p : B; 5 : F; 5 : B", work=one) == "0F0 0B0"


def test_a_count_beyond_all_work_ends_with_the_work():
    begun = time.monotonic()
    assert laid_out("999999999999 : F; m*999999999999 : B").endswith("0B2")
    assert time.monotonic() - begun < 60  # hours, if every turn were taken


def test_every_action_knows_its_phase():
    found = lay_out(parse_phases(["2 : F; * : F; * : B"]), WORK, VALUES)
    assert [phase.text for _, phase in found] == ["2 : F"] * 2 + ["* : F"] * 4 + ["* : B"] * 6


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("2 : F; * : B",), "rank 1: the phases end and 0F1 is not done; let the counts add up, or end with '*: ...'"),
        (("* : F",), "rank 1: the phases end and 5B0 is not done"),
        (("* : F1; * : B",), "rank 1: the phases end and 0F0 is not done"),
        (("* : F; * : I",), "rank 1: the phases end and 5W0 is not done"),
        (("* : F2",), "rank 1: F2 names a chunk, and there are 2, counted from 0"),
        ((), "rank 1: the phases end and 0F0 is not done"),
    ],
)
def test_work_that_is_left_is_refused(lines, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        laid_out(*lines)


def test_a_count_that_divides_by_zero_is_refused():
    with pytest.raises(ScheduleError, match="divides by zero"):
        laid_out("p // (r - 1) : F")
