"""Move the actions of a trial: what a process of the search is given to do."""

from dataclasses import dataclass

from annopipe.tuning.reordering.joining import joined
from annopipe.tuning.reordering.problem import Problem
from annopipe.tuning.reordering.search import shortened
from annopipe.tuning.trial import Moved, Score, Trial, scored, scored_schedule
from annopipe.tuning.workload import Workload

__all__ = ["Reordering"]


@dataclass(frozen=True)
class Reordering:
    """One search over the orders of a trial.

    Attributes:
        trial: one that can be run.
        seed, effort, enough: see `shortened`.
    """

    trial: Trial
    seed: int
    effort: int
    enough: float = 0.0

    def run(self, work: Workload) -> tuple[Trial, Score]:
        """The trial with its actions moved and its score; the trial itself where that does not make it shorter."""
        trial = self.trial
        before, schedule = scored_schedule(work, trial)
        if schedule is None:
            return trial, before
        problem = Problem.of(schedule, trial.costs(work), work.memory)
        found = shortened(problem, seed=self.seed, effort=self.effort, enough=self.enough)
        texts = problem.schedule(joined(problem, found.orders, found.makespan)).programs.texts()
        start = trial.moved.start if trial.moved else trial.name
        moved = trial.with_moved(Moved(start, tuple(map(tuple, texts))))
        after = scored(work, moved)
        return (moved, after) if after.makespan < before.makespan else (trial, before)
