import pytest

import annopipe as ap
from annopipe.scheduling.actions import overlap
from tests.scheduling.generation.reference import Reference


@pytest.mark.parametrize("microbatches", [2, 4, 8, 16])
@pytest.mark.parametrize("memory", [8.0, 9.0, 10.0])
def test_a_pair_fits_into_the_memory_with_its_forward_and_its_backward_together(memory, microbatches):
    spec = ap.ScheduleSpec(
        ap.placement.v(ranks=4),
        microbatches,
        priority=("B", "I", "F", "W"),
        split_backward="unpaired",
        pair=("F", "B"),
        memory=memory,
        costs=ap.costs.table(FB=2.4),
    )
    schedule = spec.build()
    schedule.check(memory=memory)
    assert ap.simulate(schedule, spec.costs).peak_memory <= memory


def test_a_microbatch_begins_in_the_pair_that_frees_the_room_it_will_need():
    two_waves = ap.Placement((0, 0, 0, 0), ((0, 1), (2, 3)), (0, 1, 0, 1), (0, 0, 1, 1))
    spec = ap.ScheduleSpec(two_waves, 2, pair=("F", "B"), memory=2.0, costs=ap.costs.table(kept_for_weight=0.0))
    schedule = spec.build()
    assert [str(action) for action in schedule.ranks[0]][3] == "(2F1;0B0)OVERLAP_F_B"
    schedule.check(memory=2.0)
    reference = Reference(spec).run()
    assert [
        [str(overlap(*actions) if len(actions) > 1 else actions[0]) for _, actions in rank] for rank in reference
    ] == [list(map(str, rank)) for rank in schedule.ranks]
