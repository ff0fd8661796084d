"""The cases of rank programs beside this file: state, experts, and stages that are parallel themselves."""

import pytest

from tests.pipeline.cases import check_cases


@pytest.mark.slow
@pytest.mark.parametrize(("program", "ranks"), [("state_cases", 1), ("sharded_cases", 2)])
def test_every_case_holds(program, ranks):
    check_cases(program, ranks)


# What one rank, or a whole model on each rank, cannot show; the rest of the program is nightly.
ON_SEVERAL_RANKS = {
    ("state_cases", 2): (
        "evaluation_is_possible_at_any_time",
        "copies_of_a_tied_parameter_that_differ_are_refused_everywhere",
        "parameters_that_split_has_seen_in_two_stages_are_tied",
    ),
    ("expert_cases", 4): ("experts_are_shared_inside_a_pipeline",),
    ("parallel_cases", 2): (
        "sequence_parallel_stages_hand_on_their_part_of_the_sequence",
        "stages_on_the_meta_device_begin_as_parts_of_the_whole_model",
        "gradients_of_narrow_types_are_added_up_in_wide_ones",
        "training_goes_on_from_a_checkpoint_on_other_ranks",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("program", "ranks"), ON_SEVERAL_RANKS)
def test_some_cases_hold_on_several_ranks(program, ranks):
    check_cases(program, ranks, ON_SEVERAL_RANKS[program, ranks])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("state_cases", 2),
        ("state_cases", 4),
        ("expert_cases", 4),
        ("sharded_cases", 4),
        ("parallel_cases", 2),
        ("parallel_cases", 4),
    ],
)
def test_every_case_holds_on_other_counts_of_ranks(program, ranks):
    check_cases(program, ranks)
