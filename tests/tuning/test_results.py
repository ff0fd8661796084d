"""Results in a file: a search that is interrupted goes on to what it would have found; other files are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from annopipe.errors import CostError
from annopipe.tuning.baseline import library_trials
from annopipe.tuning.candidate import Candidate
from annopipe.tuning.layers import Layer
from annopipe.tuning.results import Results
from annopipe.tuning.search import Progress
from annopipe.tuning.trial import Score
from annopipe.tuning.tuner import tune
from annopipe.tuning.workload import Workload

LAYER = Layer(1.0, 1.0, 1.0, activation=1.0)
WORK = Workload((LAYER,) * 8, ranks=4, microbatches=5, memory=5.0, name="tight")
EFFORT = 12_000


def _told(found: list[Candidate]) -> list[tuple[str, float, object]]:
    return [(each.name, each.timeline.makespan, each.trial.moved) for each in found]


class Interrupt:
    """Stops a search at some report, as Ctrl-C does."""

    def __init__(self, turn: int) -> None:
        self.turn, self.parts = turn, list[str]()

    def __call__(self, progress: Progress) -> None:
        self.parts.append(progress.part)
        if len(self.parts) == self.turn:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def uninterrupted() -> list[tuple[str, float, object]]:
    return _told(tune(WORK, effort=EFFORT, workers=1))


@pytest.mark.parametrize("turn", [2, 7])
def test_an_interrupted_search_goes_on_to_what_it_would_have_found(
    turn: int, tmp_path: Path, uninterrupted: list[tuple[str, float, object]]
) -> None:
    path, stop = tmp_path / "new" / "tight.jsonl", Interrupt(turn)
    some = tune(WORK, effort=EFFORT, workers=1, results=path, report=stop)
    assert stop.parts[-1] == "interrupted"
    assert some[0].timeline.makespan >= uninterrupted[0][1]
    with path.open("a") as file:
        file.write('{"key": "torn')
    kept = len(Results(path, WORK))
    assert kept > 0
    assert _told(tune(WORK, effort=EFFORT, workers=1, results=path)) == uninterrupted
    size = path.stat().st_size
    assert _told(tune(WORK, effort=EFFORT, workers=1, results=path)) == uninterrupted
    assert path.stat().st_size == size  # nothing was tried again


def test_without_a_file_an_interrupt_is_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(WORK, effort=EFFORT, workers=1, report=Interrupt(2))


def test_the_name_of_a_workload_does_not_matter_its_numbers_do(tmp_path: Path) -> None:
    path = tmp_path / "tight.jsonl"
    Results(path, WORK)
    Results(path, replace(WORK, name="the same"))
    with pytest.raises(
        CostError, match="has results of another workload, 'tight', .* and not of 'tight': give another"
    ):
        Results(path, replace(WORK, memory=6.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[workload]]\n", "has no results of annopipe tune"),
        ('{"what": "other"}\n', "has no results of annopipe tune"),
        ("{", "has no results of annopipe tune"),
        ('{"what": "annopipe tune results", "version": 99}\n', "has results of version 99, and this is version 2"),
    ],
)
def test_what_is_no_such_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(CostError, match=message):
        Results(path, WORK)
    assert path.read_text() == text


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tight.jsonl"
    Results(path, WORK)
    with path.open("a") as file:
        file.write(json.dumps({"key": "a"}) + "\n")
    with pytest.raises(CostError, match="line 2, is no result: drop that line"):
        Results(path, WORK)


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CostError, match="cannot read or write results in .*; give another path"):
        Results(tmp_path, WORK)


def test_a_file_that_is_torn_in_its_first_line_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "tight.jsonl"
    Results(path, WORK)
    whole = path.read_bytes()
    for size in (0, 40, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert len(Results(path, WORK)) == 0
        assert path.read_bytes() == whole


@pytest.mark.parametrize("makespan", ["1.0", -1.0, None, float("nan")])
def test_a_score_that_is_none_is_a_broken_line(makespan: object, tmp_path: Path) -> None:
    path = tmp_path / "tight.jsonl"
    Results(path, WORK)
    score = {"makespan": makespan, "memory": 1.0, "actions": 1, "why": ""}
    with path.open("a") as file:
        file.write(json.dumps({"key": "a", "score": score, "moved": None}) + "\n")
    with pytest.raises(CostError, match="line 2, is no result"):
        Results(path, WORK)


def test_two_searches_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tight.jsonl"
    both = Results(path, WORK), Results(path, WORK)
    trials = library_trials(WORK)[:2]
    for results, trial in zip(both, trials, strict=True):
        results.keep([trial], [(None, Score(1.0, 1.0, 1))])
    found = Results(path, WORK)
    assert [found.of(trial) for trial in trials] == [(None, Score(1.0, 1.0, 1))] * 2


def test_whole_numbers_of_either_kind_are_the_same_workload(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    tune(WORK, effort=2_000, workers=1, results=path)
    same = Workload((Layer(1, 1, 1, activation=1),) * 8, ranks=4, microbatches=5, memory=5, name="tight")
    trials = library_trials(WORK)
    assert [Results(path, same).of(trial) for trial in library_trials(same)] == [
        Results(path, WORK).of(trial) for trial in trials
    ]
    assert Results(path, same).of(trials[0]) is not None
