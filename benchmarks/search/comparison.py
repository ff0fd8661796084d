"""Policy ``search`` beside others on the problems of ``benchmarks.search.problems``, over what was proved of them."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from annopipe.ordering.builtin_policies import Optimal
from annopipe.ordering.problem import OverlapProblem
from annopipe.ordering.registry import find

__all__ = ["LIMITS", "Reference", "Row", "compared", "proved_now", "proved_so_far"]

# What search may take, over the proven optimum and over a bound with rounded times.
LIMITS: Mapping[str, float] = {"optimum": 1.01, "bound": 1.02}
_FILE = Path(__file__).parent / "proven.txt"


@dataclasses.dataclass(frozen=True)
class Reference:
    """What CP-SAT proved: microseconds of the optimum, or a bound on it from times rounded down to 100 us.

    kind: "optimum" or "bound".
    """

    time_us: int
    kind: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem, what is known of it, and of each policy the makespan over that and the seconds that it took."""

    name: str
    tasks: int
    reference: Reference
    over: Mapping[str, float]
    seconds: Mapping[str, float]

    @property
    def is_within_limit(self) -> bool:
        """Whether search is close enough, and no other policy is better."""
        return self.over["search"] <= min(LIMITS[self.reference.kind], min(self.over.values()) * (1 + 1e-9))


def proved_so_far() -> dict[str, Reference]:
    """What is written down in proven.txt, by problem.

    >>> proved_so_far()["pair of 1, x1"]
    Reference(time_us=64552, kind='optimum')
    """
    found = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            time_us, kind, name = line.split(maxsplit=2)
            found[name] = Reference(int(time_us), kind)
    return found


def proved_now(problem: OverlapProblem, time_limit_s: float) -> Reference:
    """What the solver proves in a time.

    Raises OrderError without OR-tools.
    """
    proof = Optimal(time_limit_s=time_limit_s).prove(problem)
    return Reference(round(proof.bound * 1e6), "optimum" if proof.is_proven else "bound")


def compared(
    problems: Mapping[str, OverlapProblem], policies: Sequence[str], references: Mapping[str, Reference]
) -> Iterator[Row]:
    """A row for each problem, as soon as it is there."""
    for name, problem in problems.items():
        over, seconds = {}, {}
        reference = references[name]
        for policy in policies:
            started = time.perf_counter()
            order = find(policy)[1](problem)
            seconds[policy] = time.perf_counter() - started
            over[policy] = problem.makespan(order) * 1e6 / reference.time_us
        yield Row(name, sum(node.kind != "wait" for node in problem.nodes), reference, over, seconds)
