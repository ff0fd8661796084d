"""The cases of the rank programs beside this file, on real ranks over gloo: all cases of a program in one start."""

import json

import pytest

from benchmarks.launch import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "ranks"),
    [("boundary_cases", 2), ("state_cases", 1), ("shape_cases", 2), ("nano_cases", 2), ("sharded_cases", 2)],
)
def test_every_case_holds(program, ranks):
    run_cases(program, ranks)


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
    run_cases(program, ranks, ON_SEVERAL_RANKS[program, ranks])


@pytest.mark.slow
def test_ranks_print_no_warnings():
    module = "tests.pipeline.quiet"
    assert run_ranks(module, 2, timeout_s=400) == ["quiet\n", "quiet\n"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("shape_cases", 1),
        ("shape_cases", 4),
        ("nano_cases", 1),
        ("nano_cases", 4),
        ("boundary_cases", 1),
        ("boundary_cases", 4),
        ("state_cases", 2),
        ("state_cases", 4),
        ("expert_cases", 4),
        ("sharded_cases", 4),
        ("parallel_cases", 2),
        ("parallel_cases", 4),
    ],
)
def test_every_case_holds_on_other_counts_of_ranks(program, ranks):
    run_cases(program, ranks)


def run_cases(program, ranks, names=()):
    outputs = run_ranks(f"tests.pipeline.{program}", ranks, args=names, timeout_s=400)
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    problems = [(case, problem) for outcome in found for case, problem in outcome.items() if problem]
    assert not problems, "\n".join(f"{case}: {problem}" for case, problem in problems)
    assert all(outcome for outcome in found)
