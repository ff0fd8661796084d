"""The search: never worse than the library, the same for a seed, within the memory; what it hands out can be run."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from annopipe.errors import CostError, PipelineError, ScheduleError
from annopipe.tuning.account import Account
from annopipe.tuning.baseline import library_trials
from annopipe.tuning.families import families
from annopipe.tuning.layers import Layer, Recompute
from annopipe.tuning.layout import Layout
from annopipe.tuning.run_config import RunConfig
from annopipe.tuning.trial import Trial, scored
from annopipe.tuning.tuner import tune
from annopipe.tuning.workers import Workers
from annopipe.tuning.workload import Workload

if TYPE_CHECKING:
    from annopipe.tuning.search import Progress

LAYER = Layer(1.0, 1.0, 1.0, activation=1.0)
HEAD = Workload((*[LAYER] * 6, replace(LAYER, F=3.0, I=3.0, W=3.0)), ranks=3, microbatches=6, name="head")
MOE = Workload((replace(LAYER, comm=0.8),) * 8, ranks=2, microbatches=6, name="moe")
TIGHT = Workload((replace(LAYER, recompute=Recompute(0.6, 0.4)),) * 8, 4, 8, memory=5.0, name="tight")
TOWERS = Workload((LAYER,), ranks=3, microbatches=4, towers=((LAYER,) * 4, (replace(LAYER, F=2.0),) * 3), name="towers")
SLOW = Workload((LAYER,) * 9, ranks=3, microbatches=5, message=1.0, speed=(1.0, 1.0, 0.5), name="slow")
ALL = (HEAD, MOE, TIGHT, TOWERS, SLOW)


@pytest.mark.parametrize("work", ALL, ids=lambda work: work.name)
def test_the_first_is_never_worse_than_the_library_with_even_stages(work: Workload) -> None:
    best = min(scored(work, trial) for trial in library_trials(work)).makespan
    found = tune(work, effort=20_000, workers=1)
    assert found[0].timeline.makespan <= best
    assert [c.timeline.makespan for c in found if c.trial.rules.library] == pytest.approx([best])


@pytest.mark.parametrize("work", ALL, ids=lambda work: work.name)
def test_what_is_found_is_a_whole_step_within_the_memory(work: Workload) -> None:
    for candidate in tune(work, effort=20_000, workers=1, best=4):
        costs = candidate.trial.costs(work)
        candidate.schedule.check(memory=work.memory, costs=costs)
        assert candidate.timeline.makespan == candidate.schedule.simulated(costs).makespan


def test_a_seed_finds_the_same_with_any_number_of_workers() -> None:
    def found(seed: int, workers: int) -> list[str]:
        return [f"{c.name} {c.trial.layout.bounds}" for c in tune(HEAD, effort=30_000, seed=seed, workers=workers)]

    assert found(0, 1) == found(0, 2) == found(0, 1)


def test_the_sum_of_gradients_counts_when_candidates_are_ranked() -> None:
    layers = tuple(replace(LAYER, reduce=reduce) for reduce in (0.0, 6.0, 0.0, 0.0, 6.0, 0.0))
    found = tune(Workload(layers, ranks=2, microbatches=3), effort=3_000, workers=1)
    steps = [candidate.step for candidate in found if not candidate.trial.rules.library]
    assert steps == sorted(steps)
    assert all(candidate.step >= candidate.bound for candidate in found)


def test_a_loss_over_the_whole_batch_has_all_forwards_before_it_in_a_chain_too() -> None:
    work = replace(HEAD, batch_wide=True)
    for candidate in tune(work, effort=2_000, workers=1):
        placement = candidate.schedule.placement
        (last,) = placement.output_stages
        texts = candidate.schedule.programs.texts()[placement.rank_of[last]]
        kinds = [text.strip("0123456789")[:1] for text in texts if text.startswith(f"{last}")]
        assert "F" not in kinds[work.microbatches :]
        assert candidate.step >= candidate.bound * (1 - 1e-9)


@pytest.mark.parametrize("ranks", [2, 4, 6])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (1, 1, 1, 1)], ids=str)
def test_towers_with_fewer_layers_than_ranks_have_schedules(ranks: int, lengths: tuple[int, ...]) -> None:
    towers = tuple((LAYER,) * length for length in lengths)
    work = Workload((LAYER, LAYER), min(ranks, sum(lengths) + 2), microbatches=2, towers=towers)
    best = tune(work, effort=100, workers=1)[0]
    best.schedule.check(costs=best.trial.costs(work))
    assert set(best.trial.layout.placement.rank_of) == set(range(work.ranks))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": True}, "copies=True: give 1 or 2 copies"),
        ({"seed": "x"}, "seed='x': give a whole number"),
        ({"cluster": "h100"}, "cluster is 'h100': give an annopipe.Cluster"),
        ({"memory": float("nan")}, "memory=nan: give a number that is finite"),
        ({"report": 5}, "report is 5: give a function"),
    ],
)
def test_what_a_search_cannot_use_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError, match=message):
        tune(HEAD, effort=100, workers=1, **options)


def test_a_step_that_no_search_can_simulate_is_refused_before_any_work() -> None:
    with pytest.raises(CostError, match="1000000000 microbatches on 3 ranks are more than a search can simulate"):
        tune(replace(HEAD, microbatches=10**9), workers=1)


def test_more_effort_is_never_worse() -> None:
    steps = [tune(HEAD, effort=effort, workers=1)[0].timeline.makespan for effort in (2_000, 20_000, 60_000)]
    assert steps == sorted(steps, reverse=True)


def test_layers_that_are_not_even_are_cut_so_that_the_ranks_are() -> None:
    found = tune(HEAD, effort=40_000, workers=1)
    library = next(candidate for candidate in found if candidate.trial.rules.library)
    assert library.timeline.makespan / found[0].timeline.makespan > 1.05


def test_what_communicates_runs_as_nano_batches_where_that_is_shorter() -> None:
    found = tune(MOE, effort=20_000, workers=1)
    whole = min(c.timeline.makespan for c in found if c.trial.rules.nano_batches == 1)
    assert found[0].trial.rules.nano_batches == 2
    assert found[0].timeline.makespan < whole
    assert any("/2" in str(action) for actions in found[0].schedule.ranks for action in actions)


def test_a_memory_that_no_schedule_keeps_to_says_what_would_do() -> None:
    with pytest.raises(CostError, match="with one microbatch in flight the fullest rank holds 0.8 or more"):
        tune(TIGHT, memory=0.5, workers=1)


def test_a_memory_that_no_schedule_tried_keeps_to_is_refused_with_what_the_nearest_holds() -> None:
    uneven = Workload((LAYER,) * 3, ranks=2, microbatches=2, memory=1.5, name="uneven")
    with pytest.raises(
        CostError, match=r"'uneven': none of \d+ schedules tried can be run; the nearest: it holds 2 of 1.5"
    ):
        tune(uneven, effort=2_000, workers=1)


def test_parameters_that_alone_are_too_much_are_refused() -> None:
    heavy = Workload((replace(LAYER, parameters=4.0),) * 3, ranks=2, microbatches=2, memory=7.8, name="heavy")
    (family, *_) = families(heavy)
    with pytest.raises(ScheduleError, match="the parameters of a rank alone are more than its memory"):
        Trial(family, Layout(family.placement, ((0, 2), (2, 3)))).simulated(heavy)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"effort": 0}, "effort=0: give a whole number"),
        ({"workers": 1.5}, "workers=1.5: give a whole number"),
        ({"best": 0}, "best=0: give a whole number"),
        ({"copies": 3}, "copies=3: give 1 or 2 copies"),
        ({"work": LAYER}, "work is Layer.*: give an annopipe.Workload"),
    ],
)
def test_what_is_no_count_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError, match=message):
        tune(**{"work": HEAD, **given})


def test_a_process_that_ends_is_an_error_that_says_what_to_do() -> None:
    with Workers(HEAD, 2) as workers:
        for process in workers._processes:
            process.kill()
            process.wait()
        with pytest.raises(PipelineError, match="a process of the search has ended with -9; .* workers=1 searches in"):
            workers.scores(library_trials(HEAD)[:2])


def test_one_copy_of_the_model_is_enough_if_it_has_to_be() -> None:
    assert all(c.trial.layout.placement.copies == 1 for c in tune(HEAD, effort=10_000, copies=1, workers=1))


def test_progress_is_told_and_goes_up_to_the_effort() -> None:
    told: list[Progress] = []
    tune(HEAD, effort=10_000, workers=1, report=told.append)
    assert {progress.part for progress in told} >= {"library", "layouts"}
    assert told[-1].share == 1.0
    assert told[-1].best == min(progress.best for progress in told)


def test_the_parts_of_an_account_add_up_to_the_step() -> None:
    for candidate in tune(MOE, effort=10_000, workers=1, best=3):
        assert sum(candidate.account.plain().values()) == pytest.approx(candidate.timeline.makespan)
    one, other = Account(1.0, 0.0, 2.0, 0.0, 0.0), Account(1.5, 1.0, 1.0, 0.0, 0.0)
    assert one.gains(other) == {"computing": 0.5, "exposed": 1.0, "filling": -1.0, "waiting": 0.0, "draining": 0.0}


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    for work in (HEAD, TOWERS, TIGHT):
        candidate = tune(work, effort=10_000, workers=1, best=1)[0]
        candidate.save(tmp_path / f"{work.name}.toml")
        assert RunConfig.load(tmp_path / f"{work.name}.toml") == candidate.config
