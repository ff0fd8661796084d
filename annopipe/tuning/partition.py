"""Where to cut a model into stages: evenly by layers, or so that the ranks have equal work."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from annopipe.scheduling.placement import Placement
from annopipe.tuning.layout import Bounds, Layout
from annopipe.tuning.workload import Workload

__all__ = ["Family", "balanced", "even", "moved"]

_FEW_CUTS = 12  # up to so many, two of them are moved at a time


@dataclass(frozen=True)
class Family:
    """A placement, and which stages of it are cut from which chain of a workload.

    Attributes:
        placement: of all stages; those of a second copy have the layers of the first's.
        groups: for each chain, its stages in the order of the model, of the first copy.
    """

    placement: Placement
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of_chain(cls, placement: Placement) -> "Family":
        """The stages of a placement whose first copy is one chain."""
        return cls(placement, (tuple(dict.fromkeys(placement.weights_of)),))

    def fits(self, work: Workload) -> bool:
        """Whether every stage can have a layer."""
        return all(len(chain) >= len(group) for chain, group in zip(work.chains, self.groups, strict=True))

    def cuts(self, bounds: Bounds) -> list[list[int]]:
        """For each chain, where its stages begin, and where the last one ends."""
        return [[bounds[group[0]][0], *(bounds[stage][1] for stage in group)] for group in self.groups]

    def bounds(self, cuts: Sequence[Sequence[int]]) -> Bounds:
        """The layers of every stage, those of all copies."""
        found: dict[int, tuple[int, int]] = {}
        for group, ends in zip(self.groups, cuts, strict=True):
            found |= zip(group, itertools.pairwise(ends), strict=True)
        return tuple(found[first] for first in self.placement.weights_of)


def even(work: Workload, family: Family, *, longer_last: bool = False) -> Bounds:
    """Stages whose numbers of layers differ by at most one in each chain; the longer ones come first, or last.

    >>> from annopipe.scheduling import placement
    >>> from annopipe.tuning.layers import Layer
    >>> work = Workload((Layer(1.0, 1.0, 1.0),) * 7, ranks=3, microbatches=1)
    >>> even(work, Family.of_chain(placement.linear(3)))
    ((0, 3), (3, 5), (5, 7))
    """
    cuts, first = [], 0
    for chain, group in zip(work.chains, family.groups, strict=True):
        size, longer = divmod(len(chain), len(group))
        lengths = [
            size + (index >= len(group) - longer if longer_last else index < longer) for index in range(len(group))
        ]
        cuts.append([*itertools.accumulate(lengths, initial=first)])
        first += len(chain)
    return family.bounds(cuts)


def balanced(work: Workload, family: Family, *, hidden: bool = False) -> Bounds:
    """Stages so that the busiest rank has the least to do, as far as moving cuts one layer at a time gets there.

    It is never busier than with even stages.

    Args:
        work: whose layers are cut.
        family: the stages; each can have a layer.
        hidden: whether communication inside layers counts as hidden: see `Layout.loads`.

    >>> from annopipe.scheduling import placement
    >>> from annopipe.tuning.layers import Layer
    >>> work = Workload((*[Layer(1.0, 1.0, 1.0)] * 6, Layer(2.0, 2.0, 2.0)), ranks=2, microbatches=1)
    >>> balanced(work, Family.of_chain(placement.linear(2)))
    ((0, 4), (4, 7))
    """
    cuts, first = [], 0
    for chain, group in zip(work.chains, family.groups, strict=True):
        cuts.append(_proportional(work, first, len(chain), family.placement, group))
        first += len(chain)
    starts = family.bounds(cuts), even(work, family), even(work, family, longer_last=True)
    score, best = min((_score(work, family, bounds, hidden=hidden), bounds) for bounds in starts)
    improved = True
    while improved:
        improved = False
        for bounds in moved(family, best):
            found = _score(work, family, bounds, hidden=hidden)
            if found < score:
                best, score, improved = bounds, found, True
                break
    return best


def moved(family: Family, bounds: Bounds) -> Iterator[Bounds]:
    """Every cut one layer up or down, and every two of them where there are few."""
    cuts = family.cuts(bounds)
    places = [(chain, index) for chain, ends in enumerate(cuts) for index in range(1, len(ends) - 1)]
    steps: list[tuple[tuple[tuple[int, int], int], ...]] = [((place, step),) for place in places for step in (-1, 1)]
    if len(places) <= _FEW_CUTS:
        steps += [((a, s), (b, t)) for a, b in itertools.combinations(places, 2) for s in (-1, 1) for t in (-1, 1)]
    for step_of in steps:
        found = [list(ends) for ends in cuts]
        for (chain, index), step in step_of:
            found[chain][index] += step
        if all(start < end for ends in found for start, end in itertools.pairwise(ends)):
            yield family.bounds(found)


def _proportional(work: Workload, first: int, count: int, placement: Placement, stages: Sequence[int]) -> list[int]:
    """The ends of the stages of one chain, where the work before them is their ranks' share."""
    weights = [layer.work + 2.0 * layer.comm for layer in work.all_layers[first : first + count]]
    done = [*itertools.accumulate(weights, initial=0.0)]
    shares = [*itertools.accumulate(work.speeds[placement.rank_of[stage]] for stage in stages)]
    ends = [0]
    for index, share in enumerate(shares[:-1]):
        target, latest = done[-1] * share / shares[-1], count - (len(stages) - 1 - index)
        ends.append(min(range(ends[-1] + 1, latest + 1), key=lambda place, t=target: abs(done[place] - t)))  # type: ignore[misc]
    return [first + end for end in (*ends, count)]


def _score(work: Workload, family: Family, bounds: Bounds, *, hidden: bool) -> tuple[float, float]:
    found = Layout(family.placement, bounds).loads(work, hidden=hidden)
    return round(max(found), 9), round(sum(load * load for load in found), 9)
