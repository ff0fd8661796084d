"""``optimal``: the shortest order of a small problem, with a proof, by OR-tools' CP-SAT (extra ``optimal``).

The solver's model has what the simulation has: the issuing thread, a link for each queue, launches and their issue
times, waits, host reads. What counts is what the simulation says of the order that comes out.

A proof takes whole numbers. Times that are whole microseconds, or nanoseconds, are taken as they are. Where the solver
is not done in half of its time, times are rounded to a two-thousandth of the lower bound: up for an order, down for a
bound that holds for every order; the gap between the two is reported.
"""

import dataclasses
import importlib
from typing import Any

from annopipe.errors import OrderError
from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.builtin_policies.auto import auto
from annopipe.ordering.host_reads import counts_early
from annopipe.ordering.problem import OverlapProblem, ReasonedOrder
from annopipe.ordering.registry import PolicyWithOptions
from annopipe.ordering.search.steps import Steps, is_timed_exactly, steps_of
from annopipe.simulation.wording import seconds_text

__all__ = ["Optimal", "Proof", "optimal"]

_MOST_STEPS = 150
_COARSE_TICKS = 2_000  # in the lower bound
_FINE_TICKS = 1_000_000
_SAME = 1.0 + 1e-9


@dataclasses.dataclass(frozen=True)
class Proof:
    """An order of nodes, its seconds in simulation, and seconds that no order can beat."""

    order: tuple[int, ...]
    seconds: float
    bound: float

    @property
    def is_proven(self) -> bool:
        """Whether no order is shorter."""
        return self.seconds <= self.bound * _SAME


@dataclasses.dataclass(frozen=True)
class Optimal(PolicyWithOptions):
    """Policy ``optimal`` with other options: ``ap.overlap(graph, policy=ap.Optimal(time_limit_s=10))``.

    Args:
        time_limit_s: how long the solver may look, in seconds.
        workers: threads of the solver.
        seed: of its random numbers.

    What the solver finds in its time differs from call to call, so where several ranks run the graph, ``ap.overlap``
    wants their ``group`` and takes the order of its first rank.

    >>> print(Optimal(workers=4))
    optimal(workers=4)
    """

    time_limit_s: float = 60.0
    workers: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no limit."""
        if not self.time_limit_s > 0 or not isinstance(self.workers, int) or self.workers < 1:
            raise OrderError(
                f"Optimal(time_limit_s={self.time_limit_s!r}, workers={self.workers!r}): give seconds and a whole "
                "number of threads, more than 0"
            )

    @property
    def name(self) -> str:
        """The policy's name."""
        return "optimal"

    @property
    def memory_bytes(self) -> None:
        """It keeps no limit."""

    @property
    def is_repeatable(self) -> bool:
        """The solver depends on the clock and on its threads."""
        return False

    def __call__(self, problem: OverlapProblem) -> ReasonedOrder:
        """The shortest order, or the best with its gap; needs costs.

        Raises:
            OrderError: OR-tools is missing, the problem is too large, or its network is one that shares links.
        """
        proof = self.prove(problem)
        early = waits_late(problem, counts_early(problem, proof.order))
        if problem.makespan(early) <= proof.seconds * _SAME:
            proof = dataclasses.replace(proof, order=tuple(early))
        steps = sum(node.kind != "wait" for node in problem.nodes)
        if proof.is_proven:
            told = f"proven: no order of these {steps} tasks is shorter"
        else:
            told = (
                f"not proven: at most {proof.seconds / proof.bound - 1:.2%} longer than the shortest of {steps} tasks"
            )
        return ReasonedOrder(proof.order, f"optimal: {seconds_text(proof.seconds)}, {told}")

    def prove(self, problem: OverlapProblem) -> Proof:
        """The best order with a bound; for the errors see above."""
        _check(problem)
        order = list(auto(problem))
        best = Proof(tuple(order), problem.makespan(order), lower_bound(problem))
        if best.is_proven:
            return best
        solver, steps = _solver(), steps_of(problem)
        tick, slack = _fine_tick(steps, best.bound)
        found = self._solve(solver, steps, best, tick, 0.5, down=False)
        best = _better(best, steps, found.order, found.bound_ticks * tick - slack)
        if not best.is_proven and not found.proven:
            tick = best.bound / _COARSE_TICKS
            found = self._solve(solver, steps, best, tick, 0.2, down=False)
            best = _better(best, steps, found.order, 0.0)
            found = self._solve(solver, steps, best, tick, 0.3, down=True)
            best = _better(best, steps, found.order, found.bound_ticks * tick)
        return best

    def _solve(self, solver: Any, steps: Steps, best: Proof, tick: float, share: float, *, down: bool) -> Any:
        hint, seconds = steps.from_nodes(best.order), self.time_limit_s * share
        return solver.solve(steps, tick, down=down, hint=hint, seconds=seconds, workers=self.workers, seed=self.seed)


def _check(problem: OverlapProblem) -> None:
    steps = sum(node.kind != "wait" for node in problem.nodes)
    if steps > _MOST_STEPS:
        raise OrderError(
            f"policy 'optimal': {steps} nodes without waits are too many to prove anything about (at most "
            f"{_MOST_STEPS}); use policy='search'"
        )
    if not is_timed_exactly(problem):
        queues = sorted({node.queue for node in problem.nodes if node.kind == "launch"})
        raise OrderError(
            f"policy 'optimal': on {problem.network} with queues {', '.join(queues)} transfers share a link or slow "
            "computation down, which the solver's model does not have; use policy='search'"
        )


def _solver() -> Any:
    """The adapter; imported only when it is wanted, since OR-tools is optional and takes half a second."""
    try:
        return importlib.import_module("annopipe.ordering.cp_sat")
    except ImportError as error:
        raise OrderError(
            f"policy 'optimal' needs OR-tools ({error}): pip install 'annopipe[optimal]', or use policy='search'"
        ) from error


def _fine_tick(steps: Steps, bound: float) -> tuple[float, float]:
    """A tick in which all times are whole, or else a short one, and how much rounding up may add to a makespan."""
    times = [*steps.seconds, *steps.transfer]
    for tick in (1e-6, 1e-9):
        if bound < 1e8 * tick and all(abs(time / tick - round(time / tick)) < 1e-5 for time in times):
            return tick, 0.0
    tick = bound / _FINE_TICKS
    return tick, tick * sum(time > 0 for time in times)


def _better(best: Proof, steps: Steps, order: tuple[int, ...], bound: float) -> Proof:
    """The better of two orders, timed by the simulation, and the better of two bounds."""
    nodes = steps.to_nodes(order)
    seconds = steps.problem.makespan(nodes)
    if seconds < best.seconds:
        best = dataclasses.replace(best, order=tuple(nodes), seconds=seconds)
    return dataclasses.replace(best, bound=min(max(best.bound, bound), best.seconds))


optimal = Optimal()
