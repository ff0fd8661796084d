from dataclasses import replace

from annopipe.simulation.ranks.curves import settled
from annopipe.simulation.ranks.looks import Looks, Piece
from annopipe.simulation.ranks.spans import RankSpan
from annopipe.simulation.ranks.units import time_unit
from tests.simulation.ranks.schedules import empty, one_f_one_b, simulate, v_shape, with_operations, zero_bubble


def test_parts_of_a_combination_have_the_chunk_of_their_stage():
    timeline = simulate("v", v_shape(2, 1))
    looks = Looks([timeline])
    combined = next(span for span in timeline.spans[0] if span.parts)
    assert combined.parts == ("0F1", "3B0")
    assert looks.pieces(timeline, combined) == (Piece("F", 0, 1, 0), Piece("B", 3, 0, 1))


def test_a_stage_met_only_in_combinations_gets_its_chunk_from_its_number():
    both = RankSpan(0, "(0F0;3B1)OVERLAP_F_B", "OVERLAP_F_B", 0.0, 1.0, 0, 0, 0, ("0F0", "3B1/2"))
    timeline = replace(empty(), spans=((both,), ()))
    assert [piece.chunk for piece in Looks([timeline]).pieces(timeline, both)] == [0, 1]


def test_a_part_that_is_no_action_is_kept_as_its_own_kind():
    both = RankSpan(0, "x", "OVERLAP", 0.0, 1.0, 4, None, 0, ("what?", "4F0"))
    timeline = replace(empty(), spans=((both,), ()))
    looks = Looks([timeline])
    assert looks.pieces(timeline, both)[0] == Piece("what?", 4, None, 0)
    assert looks.of("what?").hatched


def test_kinds_are_ordered_and_combinations_do_not_count():
    assert Looks([simulate("zb", zero_bubble(2, 2)), simulate("v", v_shape(2, 1))]).kinds == ["F", "B", "I", "W"]
    assert Looks([with_operations()]).kinds == ["F", "B", "UNSHARD", "OFFLOAD"]


def test_a_kind_looks_the_same_beside_other_schedules_and_later_stages_are_paler():
    alone, beside = Looks([simulate("a", one_f_one_b(2, 2))]), Looks([simulate("v", v_shape(2, 1)), with_operations()])
    assert alone.of("F") == beside.of("F")
    assert sum(bytes.fromhex(beside.of("F", 1).colour[1:])) > sum(bytes.fromhex(beside.of("F").colour[1:]))
    assert not beside.of("F").hatched
    assert beside.of("OFFLOAD").hatched


def test_unit_of_time_survives_rounding():
    assert abs((time_unit(simulate("x", one_f_one_b(3, 7), costs={"F": 0.1, "B": 0.3})) or 0.0) - 0.1) < 1e-9
    assert time_unit(simulate("x", one_f_one_b(3, 7), costs={"F": 1.0, "B": 3**0.5})) is None
    assert time_unit(empty()) is None


def test_curve_ends_on_the_last_of_simultaneous_steps_and_keeps_peaks():
    assert settled([]) == []
    assert settled([(0.0, 0.0), (0.0, 2.0), (1.0, 1.0), (1.0, 2.0)]) == [(0.0, 2.0)]
    assert settled([(0.0, 2.0), (1.0, 3.0), (1.0, 2.0)]) == [(0.0, 2.0), (1.0, 3.0), (1.0, 2.0)]


def test_nano_batches_are_lanes_of_a_look_with_the_same_colour():
    alone = RankSpan(0, "0F0/2", "F", 0.0, 1.0, 0, 0)
    both = RankSpan(0, "(0F1;0B0/2)OVERLAP_F_B", "OVERLAP_F_B", 1.0, 2.0, 0, 1, 0, ("0F1", "0B0/2"))
    timeline = replace(empty(), spans=((alone, both), ()))
    looks = Looks([timeline])
    assert [piece.lanes for span in timeline.spans[0] for piece in looks.pieces(timeline, span)] == [2, 1, 2]
    assert looks.lanes == (2,)
    assert looks.kinds == ["F", "B"]
    assert looks.of("F", 0, 2) == replace(looks.of("F"), lanes=2)
