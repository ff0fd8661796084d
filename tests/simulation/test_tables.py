from annopipe.simulation.tables import table

ROWS = [("lane", "region", "hidden"), ("F", "block0/moe/dispatch", "3 ms"), ("B", "x", "12.5 ms")]


def test_columns_are_as_wide_as_their_content():
    assert table(ROWS, 100) == [
        "lane  region                hidden",
        "F     block0/moe/dispatch     3 ms",
        "B     x                    12.5 ms",
    ]


def test_yielding_column_is_cut_and_keeps_the_ends_of_its_texts():
    assert max(map(len, table(ROWS, 30))) == 30
    assert "dispatch" in table(ROWS, 30)[1]


def test_no_column_gets_narrower_than_eight():
    assert max(map(len, table(ROWS, 1))) == 4 + 2 + 8 + 2 + 7


def test_left_says_which_columns_are_aligned_left():
    assert table([("a", "b"), ("longer", "longer")], 20, left=(1,)) == ["     a  b", "longer  longer"]
