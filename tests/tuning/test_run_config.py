"""Configs: what is refused."""

from pathlib import Path

import pytest

from annopipe.errors import PipelineError, ScheduleError
from annopipe.scheduling.library import schedule
from annopipe.tuning.run_config import RunConfig

CONFIG = RunConfig(schedule("zbv", ranks=2, microbatches=4), ((0, 1), (1, 2), (2, 4), (4, 5)), policy="auto")
WRONG = (
    ("policy", "police", PipelineError, "has no field 'police'; it has microbatches, placement, schedule"),
    ('policy = "auto"', "policy = 3", PipelineError, "policy is 3: give its name, or a pattern"),
    ('schedule = "run.csv"', "", PipelineError, "has no schedule: give it"),
    ("run.csv", "gone.csv", ScheduleError, "cannot read .*gone.csv"),
    ("rank_of = [0, 1, 1, 0]", 'rank_of = ["a"]', PipelineError, "rank_of is .*: give a list of whole numbers"),
    ("[0, 1], [1, 2]", "[0], [1, 2]", PipelineError, "give a list of lists of 2 whole numbers"),
    (
        "rank_of = [0, 1, 1, 0]",
        "rank_of = [0, 1, 0, 1]",
        ScheduleError,
        "is of stage ., which the placement has on rank",
    ),
    ("[placement]", "[placements]", PipelineError, "has no field 'placements'"),
    ("[placement]", "[placement]\nranks = 2", PipelineError, "placement has no field 'ranks'"),
    ("microbatches = 4", "microbatches = ", PipelineError, "is not TOML"),
)


@pytest.mark.parametrize(("old", "new", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_config_that_is_none_is_refused(
    old: str, new: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    CONFIG.save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(error, match=message):
        RunConfig.load(path)


def test_a_config_needs_no_more_than_a_schedule_and_its_ranks(tmp_path: Path) -> None:
    CONFIG.save(tmp_path / "run.toml")
    (tmp_path / "short.toml").write_text(
        'microbatches = 4\nschedule = "run.csv"\n[placement]\nrank_of = [0, 1, 1, 0]\n'
    )
    assert RunConfig.load(tmp_path / "short.toml").schedule == CONFIG.schedule


def test_a_placement_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('microbatches = 4\nschedule = "run.csv"\nplacement = 3\n')
    with pytest.raises(PipelineError, match="placement is 3: give a table with rank_of"):
        RunConfig.load(tmp_path / "run.toml")


def test_a_name_that_another_config_or_the_schedule_could_have_is_refused(tmp_path: Path) -> None:
    for name in ("run.csv", "run.1", "run"):
        with pytest.raises(PipelineError, match=f"{name} does not end in .toml, .* save as {name}.toml"):
            CONFIG.save(tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="run.toml: No such file"):
        RunConfig.load(tmp_path / "run.toml")
