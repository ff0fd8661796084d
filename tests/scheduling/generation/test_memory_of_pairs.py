import pytest

import annopipe as ap


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
