"""Patterns as text: what is read, what is refused and where the message points."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annopipe.errors import AnnopipeError
from annopipe.ordering.patterns import Pattern, PatternError, Piece, parse

NAMES = st.from_regex(r"[\w\-\[\]]{1,8}", fullmatch=True)
PIECES = st.builds(
    Piece,
    st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,3}", fullmatch=True),
    st.lists(NAMES, min_size=1, max_size=3).map("/".join),
    st.booleans(),
)


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    pieces = draw(st.lists(PIECES, min_size=1, max_size=8, unique=True))
    steps: list[list[Piece]] = [[]]
    for piece in pieces:
        if steps[-1] and draw(st.booleans()):
            steps.append([])
        steps[-1].append(piece)
    return Pattern(tuple(map(tuple, steps)))


@given(patterns())
def test_a_written_pattern_reads_as_itself(pattern: Pattern) -> None:
    assert parse(str(pattern)) == pattern


def test_spaces_lines_and_a_last_semicolon_mean_nothing() -> None:
    text = "\n  B.combine|F.attention ;\n\tB.experts.W;\n"
    assert str(parse(text)) == "B.combine | F.attention ; B.experts.W"


def test_pieces_know_their_place_in_the_text() -> None:
    text = " B.combine | F.moe/dispatch ;  B.experts.W"
    assert [text[piece.start : piece.end] for piece in parse(text).pieces] == [
        "B.combine",
        "F.moe/dispatch",
        "B.experts.W",
    ]


@pytest.mark.parametrize(
    ("text", "marked", "message"),
    [
        ("", "", "there is no piece"),
        (" \n ", " \n ", "there is no piece"),
        (";", "", "a step without a piece"),
        ("F.a ;; B.b", "", "a step without a piece"),
        ("; F.a", "", "a step without a piece"),
        ("F.a ; ; ", " ", "a step without a piece"),
        ("F.a | ; B.b", " ", "a piece is missing beside '|'"),
        ("| F.a", "", "a piece is missing beside '|'"),
        ("F.a || B.b", "", "a piece is missing beside '|'"),
        ("attention", "attention", "'attention' has no lane"),
        (".attention", ".", "'' is no lane"),
        ("2F.attention", "2F", "'2F' is no lane"),
        ("F.", "", "'' is no region"),
        ("F./moe", "/moe", "'/moe' is no region"),
        ("F.moe//dispatch", "moe//dispatch", "'moe//dispatch' is no region"),
        ("F.attention.I", "I", "'I' is unknown; only .W"),
        ("F.attention.w", "w", "'w' is unknown; only .W"),
        ("F.attention.W.W", "W.W", "'W.W' is unknown"),
        ("F.attention.", "", "'' is unknown; only .W"),
        ("F.a B.b", " ", "two pieces in a row"),
        ("F.a & B.b", "&", "'&' has no meaning"),
        ("F.a, B.b", ",", "',' has no meaning"),
        ("F:a", ":", "':' has no meaning"),
        ("F.a ; B.b ; F.a", "F.a", "F.a is there twice"),
        ("B.a.W | B.a.W", "B.a.W", "B.a.W is there twice"),
    ],
)
def test_what_is_no_pattern_is_refused_at_its_place(text: str, marked: str, message: str) -> None:
    with pytest.raises(PatternError) as caught:
        parse(text)
    first, shown, caret = str(caught.value).split("\n")
    assert message in first
    assert shown[2:] == text.replace("\n", " ").replace("\t", " ")
    start, length = caret.index("^") - 2, caret.count("^")
    assert first.startswith(f"pattern, column {start + 1}: ")
    assert length == max(1, len(marked))
    assert text[start : start + len(marked)] == marked
    assert isinstance(caught.value, AnnopipeError)


def test_an_error_survives_a_process_pool() -> None:
    with pytest.raises(PatternError) as caught:
        parse("F.a ; B.b.X")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
