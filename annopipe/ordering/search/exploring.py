"""Search as ``search`` and ``auto`` do it: beams that grow wider, then windows of the best order ordered anew.

Work is counted in partial orders made, not in seconds, so that the same problem and seed give the same order on every
rank and at every call.
"""

import dataclasses
import itertools
import random
from collections.abc import Sequence

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.coarsening import Coarse, coarsened
from annopipe.ordering.host_reads import counts_early
from annopipe.ordering.problem import OverlapProblem
from annopipe.ordering.registry import Policy
from annopipe.ordering.search.beam import WEIGHTS, Beam, Choices
from annopipe.ordering.search.deadline import Deadline
from annopipe.ordering.search.step_bytes import with_bytes
from annopipe.ordering.search.steps import is_timed_exactly, steps_of

__all__ = ["Explored", "briefly_explored", "explored", "leanest"]

_BRIEF_WORK = 25_000  # about a third of a second
_BRIEF_STEPS = 350
_SHARE, _FINER_SHARE = 0.01, 0.003  # of the lower bound, the longest piece of computation
_FEW = 120  # pieces: beams alone are best
_FIRST_WIDTH = 16
_WIDER = 4
_WINDOW, _WINDOW_WIDTH, _WINDOW_TRIES = 100, 20, 6
_OTHER_WEIGHTS = ((1.0, 1.0, 2.0), (0.0, 0.0, 1.0), (1.0, 0.5, 0.0), (0.3, 0.3, 0.3), (1.0, 0.0, 1.0))
_SAME = 1.0 - 1e-9


@dataclasses.dataclass(frozen=True)
class Explored:
    """The best order found; ``proven``: no order of the problem takes less time.

    settled: whether more work would find nothing shorter.
    """

    order: list[int]
    proven: bool
    settled: bool


def briefly_explored(
    problem: OverlapProblem,
    policies: Sequence[Policy],
    *,
    most_bytes: int | None = None,
    deadline: Deadline | None = None,
) -> Explored | None:
    """What little work finds; None, too, for so many pieces that it would find nothing."""
    pieces = coarsened(problem, _SHARE).problem.nodes
    if sum(piece.kind != "wait" for piece in pieces) > _BRIEF_STEPS:
        return None
    return explored(problem, policies, work=_BRIEF_WORK, most_bytes=most_bytes, deadline=deadline)


def explored(
    problem: OverlapProblem,
    policies: Sequence[Policy],
    *,
    work: int,
    seed: int = 0,
    most_bytes: int | None = None,
    deadline: Deadline | None = None,
) -> Explored | None:
    """The shortest order found; None where none is found within ``most_bytes``.

    Args:
        policies: what gives orders to begin with; applied to the pieces of a large problem.
        work: partial orders made at most, about.
        deadline: when to stop, if not only ``work`` counts.
    """
    search = _Search(problem, coarsened(problem, _SHARE), work, seed, most_bytes, deadline)
    search.widen(work if len(search.steps) <= _FEW else work // 4)
    if len(search.steps) > _FEW and not search.settled:
        finer = _Search(problem, coarsened(problem, _FINER_SHARE), work - search.work, seed, most_bytes, deadline)
        finer.begin(policies, search.result().order if search.best else None)
        finer.improve()
        search = min(finer, search, key=lambda each: each.shortest)
    return search.result() if search.best else None


def leanest(problem: OverlapProblem) -> list[int]:
    """An order that holds few bytes of ``problem.values`` at a time; there may be leaner ones."""
    coarse = coarsened(problem, _SHARE)
    steps = with_bytes(steps_of(coarse.problem), coarse, problem)
    found = Beam(steps).run(_FIRST_WIDTH, Choices.ALL if len(steps) <= _FEW else Choices.GAPS, lean=True)
    _, _, order = min(found.orders, key=lambda each: (each[1], each[0]))
    return coarse.written_out(steps.to_nodes(order))


class _Search:
    """One search on the pieces of a problem; ``best`` is the best order of steps so far."""

    def __init__(
        self,
        problem: OverlapProblem,
        coarse: Coarse,
        most_work: int,
        seed: int,
        most_bytes: int | None,
        deadline: Deadline | None,
    ) -> None:
        self.coarse, self.steps = coarse, with_bytes(steps_of(coarse.problem), coarse, problem)
        is_exact = most_bytes is None and is_timed_exactly(problem)
        self._can_prove = is_exact and len(coarse.members) == len(problem.nodes)
        self._beam = Beam(self.steps, most_bytes, deadline)
        self._problem = problem
        self._most_work, self._deadline, self._most_bytes = most_work, deadline, most_bytes
        self._random = random.Random(seed)
        self._bound = lower_bound(problem)
        self.work, self.shortest = 0, float("inf")
        self.best: tuple[int, ...] = ()
        self.settled = self._proven = False

    def result(self) -> Explored:
        """The best order so far as one of the problem's nodes."""
        found = self.coarse.written_out(self.steps.to_nodes(self.best))
        order = waits_late(self._problem, counts_early(self._problem, found))
        is_longer = self._problem.makespan(order) * _SAME > self._problem.makespan(found)
        return Explored(order, self._proven and self._can_prove and not is_longer, self.settled)

    def widen(self, most_work: int) -> None:
        """Beams, each wider than the last, until one has seen everything or the work is done."""
        width, weights = _FIRST_WIDTH, WEIGHTS
        for number in itertools.count():
            choices = Choices(min(number, Choices.ALL if len(self.steps) <= _FEW else Choices.GAPS))
            before = self.work
            found = self._beam.run(width, choices, shorter_than=self.shortest, weights=weights)
            self.work += found.work
            if found.orders:
                self.shortest, _, self.best = found.orders[0]
            self._proven = found.complete and bool(self.best)
            self.settled = self._proven or self.shortest * _SAME <= self._bound
            left = (most_work - self.work) * width // max(1, self.work - before)
            if self.settled or self._is_late or left < _FIRST_WIDTH:
                return
            if choices is Choices.ALL or number > Choices.ALL:
                width = min(width * _WIDER, left)
                weights = self._random.choice((WEIGHTS, *_OTHER_WEIGHTS)) if number % 2 else WEIGHTS

    def begin(self, policies: Sequence[Policy], order: Sequence[int] | None) -> None:
        """Take the best of what policies make of the pieces, and of an order of the problem's nodes."""
        pieces = self.coarse.problem
        orders = [policy(pieces) for policy in policies]
        if order is not None:
            place = {index: position for position, index in enumerate(order)}
            orders.append(pieces.topological([float(place[members[0]]) for members in self.coarse.members]))
        for found in orders:
            steps = self.steps.from_nodes(found)
            seconds = self.steps.timed(steps)
            if seconds < self.shortest and self._is_small_enough(steps):
                self.shortest, self.best = seconds, tuple(steps)

    def improve(self) -> None:
        """Order windows of the best order anew, with a small beam each, until the work is done."""
        size = max(20, min(_WINDOW, len(self.steps) // 6))
        while self.best and self.work < self._most_work and not self._is_late:
            if self.shortest * _SAME <= self._bound:
                return
            middle = self._random.randrange(len(self.best))
            first, last = max(0, middle - size // 2), min(len(self.best), middle + size // 2)
            found = self._beam.window(self.best, first, last, _WINDOW_WIDTH, self.shortest / _SAME)
            self.work += found.work + 1
            for _, _, inside in found.orders[:_WINDOW_TRIES]:
                changed = (*self.best[:first], *inside, *self.best[last:])
                seconds = self.steps.timed(changed)
                if seconds <= self.shortest:
                    self.shortest, self.best = seconds, changed
                    break

    def _is_small_enough(self, order: Sequence[int]) -> bool:
        return self._most_bytes is None or self.steps.peak_bytes(order) <= self._most_bytes

    @property
    def _is_late(self) -> bool:
        return self._deadline is not None and self._deadline.is_over
