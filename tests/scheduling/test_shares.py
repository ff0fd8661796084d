"""Costs of one model for schedules that cut it differently."""

from fractions import Fraction

import numpy as np
import pytest

from annopipe.errors import CostError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import ActionCosts, table
from annopipe.scheduling.shares import shared_out

GIVEN = table(
    F=[1.0, 2.0, 3.0, 4.0],
    B=3.0,
    FB=2.0,
    send=[0.1, 0.2, 0.3, 0.4],
    latency=0.5,
    activation=8.0,
    kept_for_weight=0.5,
    exposed={"F": 0.4},
    operations={"UNSHARD": [1.0, 1.0, 1.0, 2.0]},
)
PLACEMENTS = [
    placement.linear(4),
    placement.looped(4, 3),
    placement.v(4),
    placement.wave(4, 4),
    placement.bidirectional(4),
    placement.towers([0, 1], [2], top=[3]),
]


@pytest.mark.parametrize("held", PLACEMENTS, ids=lambda held: held.name)
def test_the_stages_of_a_copy_sum_up_to_the_model(held: placement.Placement) -> None:
    shared = shared_out(GIVEN, held)
    stages = range(held.stages // held.copies)
    assert sum(shared.times("F", s, 1)[0] for s in stages) == pytest.approx(10.0)
    assert sum(shared.times("B", s, 1)[0] for s in stages) == pytest.approx(12.0)
    assert sum(shared.activation_of(s) for s in stages) == pytest.approx(32.0)


def test_messages_latency_and_shares_stay_as_they_are() -> None:
    shared = shared_out(GIVEN, placement.looped(4, 2))
    assert shared.send == (0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4)
    assert (shared.latency, shared.kept_for_weight, shared.FB) == (0.5, 0.5, 1.0)
    assert shared.exposed == {"F": 0.2}
    assert shared.operations == {"UNSHARD": (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0)}


def test_one_stage_a_rank_changes_nothing() -> None:
    assert shared_out(table(F=2.0, send=0.5), placement.linear(3)) == table(F=2.0, send=0.5)


def test_a_second_copy_has_the_costs_of_the_first() -> None:
    shared = shared_out(table(F=[1.0, 2.0]), placement.bidirectional(2))
    assert shared.F == (1.0, 2.0, 1.0, 2.0)


def test_uneven_stages_share_one_number_and_refuse_a_list() -> None:
    uneven = placement.custom([0, 1, 1])
    assert shared_out(ActionCosts(F=3.0), uneven).F == 2.0
    with pytest.raises(CostError, match=r"F has one entry per rank, and 3 stages are not as many on each of 2 ranks"):
        shared_out(ActionCosts(F=[1.0, 2.0]), uneven)


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(CostError, match="F has 3 entries and there are 2 ranks; give one for each"):
        shared_out(ActionCosts(F=[1.0, 2.0, 3.0]), placement.v(2))


@pytest.mark.parametrize("given", [{"F": lambda stage, microbatch: 1.0}, {"FB": lambda first, second: 2.0}])
def test_a_function_of_the_stage_cannot_be_shared_out(given):
    with pytest.raises(CostError, match="is a function of the stage, which cannot be shared out"):
        shared_out(table(**given), placement.v(2))


def test_numbers_of_other_types_are_shared_out():
    assert shared_out(table(F=Fraction(1), I=np.float32(1)), placement.v(2)).F == 0.5
    assert shared_out(table(F=Fraction(1), I=np.float32(1)), placement.v(2)).I == 0.5
