import pytest

from annopipe.simulation.wording import amount_text, initials, one_line, place_text, seconds_text, shorten


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.0, "1 s"),
        (0.99999, "1 s"),
        (0.0999949, "99.99 ms"),
        (130.352e-3, "130.4 ms"),
        (1e-6, "1 us"),
        (12.5e-9, "12.5 ns"),
        (1e-12, "1e-12 s"),
        (-2e-3, "-2 ms"),
        (3600.0, "3600 s"),
    ],
)
def test_time_is_written_with_the_unit_that_fits(seconds, text):
    assert seconds_text(seconds) == text


def test_place_is_what_there_is_of_lane_and_region():
    assert [place_text(lane, region) for lane in ("", "F") for region in ("", "moe")] == ["", "moe", "F", "F/moe"]


def test_line_breaks_become_spaces_and_spaces_stay():
    assert one_line("one\r\n two\tthree   four") == "one  two three   four"


def test_shortened_text_keeps_its_end():
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "..defg"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.0, "0"),
        (0.5, "0.5"),
        (9999.4, "9999"),
        (9999.6, "10 k"),
        (999_960.0, "1 M"),
        (8e10, "80 G"),
        (2.5e13, "25 T"),
    ],
)
def test_amounts_have_four_digits_and_the_letter_that_fits(amount, text):
    assert amount_text(amount) == text


def test_initials_are_distinct_and_leave_out_what_is_taken():
    found = initials(["forward", "F", "four", "---"], taken="O")
    assert found == {"forward": "F", "F": "0", "four": "U", "---": "1"}
