import textwrap

from annopipe.scheduling import placement
from annopipe.scheduling.grid import grid
from annopipe.scheduling.programs import Programs


def made(ranks, steps):
    rows = [[f"{rank}F{k}" for k in range(steps)] for rank in range(ranks)]
    return Programs.of(placement.linear(ranks), steps, rows)


def test_every_place_in_sight_has_an_arrow():
    found = Programs.of(placement.linear(2), 2, [["0F0", "0B0", "0F1"], ["1F0", "(1F1;1B0)OVERLAP_F_B"]])
    expected = """\
                step 0   step 1                 step 2
    -> rank 0   0F0      0B0                    0F1
                         ^                      ^
    -> rank 1   1F0      (1F1;1B0)OVERLAP_F_B
                         ^
    """
    assert grid(found, [(1, 1), (0, 1), (0, 2)]) + "\n" == textwrap.dedent(expected)


def test_a_whole_rank_has_an_arrow_and_no_step():
    assert grid(made(2, 1), [(1, 1)]).splitlines() == ["            step 0", "   rank 0   0F0", "-> rank 1   1F0"]


def test_a_large_schedule_is_cut_around_the_place():
    expected = """\
       ...
                ... step 49   step 50   step 51
       rank 4   ... 4F49      4F50      4F51      ...
    -> rank 5   ... 5F49      5F50      5F51      ...
                              ^
       rank 6   ... 6F49      6F50      6F51      ...
       ...
    """
    assert grid(made(20, 100), [(5, 50)], rows=3, columns=3) + "\n" == textwrap.dedent(expected)


def test_without_a_place_it_begins_at_the_start():
    lines = grid(made(20, 100)).splitlines()
    assert lines[0].split()[:2] == ["step", "0"]
    assert lines[-1] == "   ..."


def test_ranks_without_actions_have_empty_rows():
    programs = Programs.of(placement.linear(2), 1, [["0F0"], []])
    assert grid(programs, [(1, 0)]).splitlines()[-1] == "-> rank 1"
