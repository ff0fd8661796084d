"""The search: library schedules, every layout with a few rules, the good ones with all, small changes, moved actions.

The effort is counted in generated actions, so that the same seed finds the same on a fast and on a slow machine, and
with any number of processes.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from annopipe.tuning.baseline import library_trials
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.families import families
from annopipe.tuning.layout import Layout
from annopipe.tuning.partition import balanced, moved
from annopipe.tuning.reordering.job import Reordering
from annopipe.tuning.rules import first_rules, more_rules, neighbours
from annopipe.tuning.trial import Score, Trial
from annopipe.tuning.workload import Workload

__all__ = ["Found", "Progress", "Search"]

_WHOLE = ("library", "nano-batches")  # parts that are done in any case
_BATCH = 16  # trials between two decisions; not the number of processes, on which nothing may depend
_LAYOUTS, _RULES = 0.4, 0.65  # of the effort, when this part of the search has to end
_GOOD_LAYOUTS, _STARTS, _SPLIT = 8, 6, 8
# The actions of so many layouts are moved; that is so many times the effort, counted in actions moved or simulated.
_ORDERS = ((12, 0.6), (4, 0.6), (2, 0.8))
_ROUNDING = 1e-9


class Scorer(Protocol):
    """What does the work: `Workers`."""

    def scores(self, trials: Sequence[Trial], /) -> list[Score]: ...

    def reordered(self, jobs: Sequence[Reordering], /) -> list[tuple[Trial, Score]]: ...


@dataclass(frozen=True)
class Progress:
    """How far a search is.

    Attributes:
        part: what it does now.
        share: of the effort, 0 to 1.
        best: the shortest step that was found; infinite before the first.
        trials: how many were made.
    """

    part: str
    share: float
    best: float
    trials: int


@dataclass(frozen=True)
class Found:
    """A trial and what it came to."""

    trial: Trial
    score: Score


class Search:
    """One search for a workload.

    Attributes:
        found: everything that was tried, by trial.

    Args:
        work: what for.
        workers: that score trials.
        seed: of the order in which changes are tried.
        effort: how many actions are generated, beside those of the library's schedules.
        copies: 1 leaves out placements with two copies of the model.
        report: called now and then.
    """

    def __init__(
        self,
        work: Workload,
        workers: Scorer,
        *,
        seed: int = 0,
        effort: int = 2_000_000,
        copies: int = 2,
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        self._work, self._workers, self._copies = work, workers, copies
        self._random, self._seed, self._effort, self._spent = random.Random(seed), seed, effort, 0
        self._report, self._part = report, ""
        self.found: dict[Trial, Score] = {}
        self._best = float("inf")

    def run(self) -> list[Found]:
        """All that can be run, the shortest first; equal ones in the order in which they were tried."""
        self._part = "library"
        self._try(library_trials(self._work, copies=self._copies))
        self._spent = 0  # the library is looked at in any case
        self._part = "layouts"
        layouts = self._try_layouts()
        self._part = "rules"
        self._try_rules(layouts)
        self._part = "changes"
        self._change()
        if self._work.has_comm:
            self._part = "nano-batches"
            self._split(self.ranked())
        self._part = "orders"
        self._reorder()
        return self.ranked()

    def interrupted(self) -> None:
        """Tell that the search ends here."""
        self._part = "interrupted"
        self._tell()

    def glance(self) -> list[Found]:
        """What a few rules make of layouts, the best ones first: enough to see what a workload is worth."""
        self._part = "layouts"
        self._try_layouts()
        return self.ranked()

    def ranked(self) -> list[Found]:
        """What was found so far: see `run`."""
        found = [Found(trial, score) for trial, score in self.found.items() if score.makespan < float("inf")]
        return sorted(found, key=lambda each: (each.score.makespan, each.score.memory))

    def why(self) -> str:
        """Why the trial that came nearest cannot be run, where none can; for messages."""
        if not self.found:
            return ""
        nearest = min(self.found.values(), key=lambda score: score.memory)
        return f"; the nearest: {nearest.why}; allow more memory, or take more ranks or smaller microbatches"

    def _try(self, trials: Sequence[Trial], until: float = 1.0) -> None:
        """Score what is new of these, as far as the effort goes."""
        fresh = [trial for trial in dict.fromkeys(trials) if trial not in self.found]
        for start in range(0, len(fresh), _BATCH):
            if self._spent >= until * self._effort and self._part not in _WHOLE:
                break
            batch = fresh[start : start + _BATCH]
            for trial, score in zip(batch, self._workers.scores(batch), strict=True):
                self.found[trial] = score
                self._spent += score.actions
                self._best = min(self._best, score.makespan)
            self._tell()

    def _tell(self) -> None:
        if self._report is not None:
            share = min(1.0, self._spent / self._effort)
            self._report(Progress(self._part, share, self._best, len(self.found)))

    def _try_layouts(self) -> list[Trial]:
        """The best trial of each layout, the best layout first."""
        work = self._work
        layouts = []
        for family in families(work, copies=self._copies):
            cuts = dict.fromkeys(balanced(work, family, hidden=hidden) for hidden in {False, work.has_comm})
            for cut in cuts:
                for layout in Layout.variants(work, family.placement, cut):
                    layouts.append((self._at_least(layout), Trial(family, layout)))
        layouts.sort(key=lambda entry: entry[0])
        tried = []
        for least, trial in layouts:
            if least < self._best:
                some = [replace(trial, rules=rules) for rules in first_rules(work, trial.layout.placement)]
                self._try(some, _LAYOUTS)
                tried += [one for one in some if one in self.found]
        best: dict[Layout, Trial] = {}
        for trial in sorted(tried, key=lambda one: self.found[one]):
            best.setdefault(trial.layout, trial)
        return list(best.values())

    def _at_least(self, layout: Layout) -> float:
        """What the busiest rank of a layout works, if all that can be hidden is."""
        return self._work.microbatches * max(layout.loads(self._work, hidden=True))

    def _try_rules(self, best_of_layouts: Sequence[Trial]) -> None:
        for trial in best_of_layouts[:_GOOD_LAYOUTS]:
            if self._at_least(trial.layout) < self._best:
                rules = more_rules(self._work, trial.layout.placement)
                self._try([replace(trial, rules=one) for one in rules], _RULES)

    def _change(self) -> None:
        """Small changes of the best trials, one after the other, as long as one of them is better than its start."""
        given_up: set[Trial] = set()
        while self._spent < self._effort:
            starts = [each for each in self.ranked() if not each.trial.rules.library and each.trial not in given_up]
            if not starts:
                return
            start = self._random.choice(starts[:_STARTS]) if given_up else starts[0]
            if not self._improve(start):
                given_up.add(start.trial)

    def _reorder(self) -> None:
        """Move the actions of the best of several layouts, and then those of fewer of them further."""
        bound = lower_bound(self._work, copies=self._copies)
        for turn, (count, share) in enumerate(_ORDERS):
            starts = self._best_of_layouts(self.ranked())[:count]
            if not starts or self._best <= bound * (1 + _ROUNDING):
                return
            effort = int(share * self._effort / len(starts))
            jobs = [Reordering(trial, len(_ORDERS) * self._seed + turn, effort, bound) for trial in starts]
            for trial, score in self._workers.reordered(jobs):
                self.found[trial] = score
                self._best = min(self._best, score.makespan)
            self._tell()

    @staticmethod
    def _best_of_layouts(ranked: Iterable[Found]) -> list[Trial]:
        best: dict[Layout, Trial] = {}
        for each in ranked:
            best.setdefault(each.trial.layout, each.trial)
        return list(best.values())

    def _split(self, ranked: Sequence[Found]) -> None:
        """Choose nano-batches for the best of some layouts: each takes as long as many trials, and is worth it."""
        chosen = self._best_of_layouts(each for each in ranked if not each.trial.rules.library)[:_SPLIT]
        self._try([replace(trial, rules=replace(trial.rules, nano_batches=2)) for trial in chosen])

    def _improve(self, start: Found) -> bool:
        """Whether a change of a trial is better; the first batch that has one ends the trying."""
        changes = [trial for trial in self._changes(start.trial) if trial not in self.found]
        self._random.shuffle(changes)
        for first in range(0, len(changes), _BATCH):
            batch = changes[first : first + _BATCH]
            self._try(batch)
            scores = [self.found[trial] for trial in batch if trial in self.found]
            if scores and min(scores) < start.score:
                return True
            if self._spent >= self._effort:
                break
        return False

    def _changes(self, trial: Trial) -> Iterator[Trial]:
        layout, family = trial.layout, trial.family
        for rules in neighbours(self._work, layout.placement, trial.rules):
            yield replace(trial, rules=rules)
        for bounds in moved(family, layout.bounds):
            counts = tuple(end - start for start, end in bounds)
            kept = tuple(map(min, layout.recomputed, counts))
            changed = Layout(layout.placement, bounds, kept)
            if self._at_least(changed) < self._best:
                yield replace(trial, layout=changed)
        if any(layer.recompute for layer in self._work.all_layers):
            yield from self._other_recompute(trial)

    def _other_recompute(self, trial: Trial) -> Iterator[Trial]:
        """One stage computes one layer more, or one less, again; and so do all stages of a rank."""
        layout = trial.layout
        counts = [end - start for start, end in layout.bounds]
        now = layout.recomputed or (0,) * len(counts)
        stages = [(stage,) for stage in range(len(counts))]
        for group in dict.fromkeys([*stages, *layout.placement.stages_on, tuple(range(len(counts)))]):
            for step in (-1, 1):
                changed = tuple(min(counts[s], max(0, given + step * (s in group))) for s, given in enumerate(now))
                yield replace(trial, layout=replace(layout, recomputed=changed))
