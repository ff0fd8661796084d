import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling.generation.formulas import NAMES, compiled, compiled_keys
from tests.scheduling.generation.specs import calm

VALUES = dict(zip(NAMES, (4, 1, 9, 2, 5, 0, 7), strict=True))


@st.composite
def sums(draw, depth=3):
    if not depth or draw(st.booleans()):
        return draw(st.sampled_from(NAMES) | st.integers(0, 9).map(str))
    left, right = draw(sums(depth - 1)), draw(sums(depth - 1))
    operator = draw(st.sampled_from(["+", "-", "*", "//", "%", "==", "!=", "<", "<=", ">", ">="]))
    return draw(st.sampled_from([f"({left} {operator} {right})", f"min({left}, {right})", f"max({left}, -{right})"]))


@calm
@given(sums())
def test_a_formula_has_the_value_that_python_gives_it(text):
    try:
        expected = int(eval(text, {"__builtins__": {}, "min": min, "max": max}, VALUES))
    except ZeroDivisionError:
        with pytest.raises(ScheduleError, match="divides by zero where"):
            compiled(text)(VALUES)
        return
    found = compiled(text)
    assert found(VALUES) == expected
    assert compiled(found.text)(VALUES) == expected
    assert found.names == {name for name in NAMES if re.search(rf"\b{name}\b", text)}


def test_keys_are_the_parts_between_commas():
    assert [key(VALUES) for key in compiled_keys("k // p, c, -k")] == [1, 0, -7]
    assert [key(VALUES) for key in compiled_keys(" s + 1 ")] == [6]


def test_formulas_are_values():
    assert compiled("p - r") == compiled("p-r")
    assert compiled("p - r") != compiled("r - p")
    assert len({compiled("p - r"), compiled("p -  r")}) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a formula; write whole numbers, p, r, m, v, s, c, k, + - * // %"),
        ("p -", "'p -' is not a formula"),
        ("p\0", "is not a formula"),
        ("(" * 300 + "p" + ")" * 300, "a formula of 601 characters; write one of at most 200"),
        ("(" * 99 + "p" + ")" * 99, None),
        ("1" * 201, "a formula of 201 characters"),
        ("q + 1", "'q' in 'q + 1' is not known here; use whole numbers, p, r, m, v, s, c, k, + - * // %, comparisons"),
        ("p / 2", "'p / 2' in 'p / 2' is not known here"),
        ("p ** 2", "'p ** 2' in 'p ** 2' is not known here"),
        ("1.5", "'1.5' in '1.5' is not known here"),
        ("True", "'True' in 'True' is not known here"),
        ("'p'", "is not known here"),
        ("0 < r < p", "'0 < r < p' in '0 < r < p' is not known here"),
        ("p, r", "'(p, r)' in 'p, r' is not known here"),
        ("min()", "'min()' in 'min()' is not known here"),
        ("min(p, key=r)", "'min(p, key=r)' in 'min(p, key=r)' is not known here"),
        ("min(*p)", "'*p' in 'min(*p)' is not known here"),
        ("abs(p)", "'abs(p)' in 'abs(p)' is not known here"),
        ("p.real", "'p.real' in 'p.real' is not known here"),
        ("min", "'min' in 'min' is not known here"),
        ("p if r else m", "is not known here"),
        ("not p", "'not p' in 'not p' is not known here"),
        ("()", "'()' in '()' is not known here"),
        ("-" * 199 + "1", None),
    ],
)
def test_anything_else_is_refused_with_the_part_that_is_wrong(text, message):
    if message is None:
        try:
            assert compiled(text)(VALUES) in (4, -1)
        except ScheduleError as error:
            assert "is not a formula" in str(error)  # noqa: PT017 - how deep Python nests is its own affair
        return
    with pytest.raises(ScheduleError, match=re.escape(message)):
        compiled(text)


@pytest.mark.parametrize("text", ["()", "k, ()", "k, (c, s)", "k, q"])
def test_keys_are_refused_in_the_same_way(text):
    with pytest.raises(ScheduleError, match="is not known here"):
        compiled_keys(text)


def test_names_can_be_restricted():
    with pytest.raises(ScheduleError, match="'k' in 'k' is not known here; use whole numbers, p, m, "):
        compiled("k", ("p", "m"))


def test_division_by_zero_says_where():
    with pytest.raises(ScheduleError, match=re.escape("'p // (r - 1)' divides by zero where {'p': 4, 'r': 1}")):
        compiled("p // (r - 1)")({"p": 4, "r": 1})
