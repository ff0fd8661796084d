"""The course: every step is equal to the one before, keeps what it says, and runs as its README says."""

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.launch import run_ranks
from examples.from_scratch import course, step9_annopipe
from examples.from_scratch.step7_asynchronous import order

FOLDER = Path(course.__file__).parent
STEPS = sorted(path.stem for path in FOLDER.glob("step*.py"))
AT_ONCE = {"BLOCK_MS": "0", "HEAD_MS": "0", "MESSAGE_MS": "0"}


@pytest.mark.slow
def test_every_step_is_equal_to_the_one_before_and_keeps_what_it_says():
    printed = run_ranks("tests.examples.course_cases", 4, env=AT_ONCE, timeout_s=400)[0]
    kept = [[1] * 4, [course.MICROBATCHES] * 4, [4, 3, 2, 1], [4, 3, 2, 1]]
    assert printed.splitlines()[-1] == str(kept)


def test_the_readme_names_every_step_and_its_command():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((step\w+)\.py\)", readme) == STEPS
    assert re.findall(r"-m examples\.from_scratch\.(step\w+)", readme) == STEPS


@pytest.mark.nightly
@pytest.mark.parametrize("step", STEPS)
def test_a_step_runs_as_the_readme_says(step):
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"`([^`]* -m examples\.from_scratch\.{step}[^`]*)`", readme)
    words = shlex.split(line)
    ranks = int(words[words.index("--nproc-per-node") + 1]) if words[0] == "torchrun" else 1
    module = words.index("-m") + 1
    assert run_ranks(words[module], ranks, args=words[module + 1 :], timeout_s=400)[0].strip()


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_order_of_step_7_is_that_of_the_library(ranks):
    import annopipe as ap

    schedule = ap.schedule("1f1b", ranks=ranks, microbatches=course.MICROBATCHES)
    for rank, actions in enumerate(schedule.ranks):
        assert [(action.kind, action.microbatch) for action in actions] == order(rank, ranks, course.MICROBATCHES)


def test_a_picture_shows_every_action_where_it_ran():
    first = course.Profile([("F", 0, 0.0, 1.0), ("B", 0, 3.0, 4.0)])
    second = course.Profile([("F", 0, 1.0, 2.0), ("B", 0, 2.0, 3.0)])
    assert course.picture([first, second], width=8) == ["rank 0 |00....aa|", "rank 1 |..00aa..|"]
    assert "bubble 50%" in course.report("two", [first, second])


def test_a_difference_is_named():
    import torch

    found = course.Result(None, {"0.weight": torch.zeros(2)})
    other = course.Result(None, {"0.weight": torch.ones(2)})
    with pytest.raises(AssertionError, match="the gradient of 0.weight differs"):
        course.compare(found, other)


def test_more_stages_than_blocks_are_refused():
    from examples.from_scratch.step2_partition import Stage

    with pytest.raises(ValueError, match="start at most 8 ranks"):
        Stage(0, course.BLOCKS + 1)


def test_simulated_durations_are_those_of_the_course(monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    expected = course.MICROBATCHES * 3 * (course.BLOCKS * course.BLOCK_S + course.HEAD_S)
    assert step9_annopipe.simulated_s("1f1b") == pytest.approx(expected)
