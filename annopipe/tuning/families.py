"""The placements that a search tries: chains down, folded or in a loop over the ranks, in one copy or two, and towers.

Two copies of the model run from both ends, or within blocks of neighbouring ranks: then two ranks share each stage, and
work that cannot be cut into equal parts is equal in pairs of ranks.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from annopipe.scheduling import placement
from annopipe.scheduling.placement import Placement
from annopipe.tuning.partition import Family
from annopipe.tuning.workload import Workload

__all__ = ["families", "in_two_copies"]

_MOST_CHUNKS = 4


def families(work: Workload, *, copies: int = 2) -> list[Family]:
    """What fits the workload, simple ones first.

    copies: 1 leaves out placements with two copies of the model.
    """
    if work.towers:
        found = list(_of_towers(work))
    elif work.batch_wide:  # the loss needs all forwards of one copy
        found = [_whole_batch(family) for family in _of_chain(work.ranks, copies=1)]
    else:
        found = list(_of_chain(work.ranks, copies))
    return [family for family in found if family.fits(work)] or [_in_a_row(work)]


def in_two_copies(chain: Placement, mirror: Sequence[int]) -> Placement:
    """A second copy of a chain, whose stages are on the ranks that mirror those of the first.

    >>> in_two_copies(placement.linear(2), [1, 0]).stages_on
    ((0, 3), (1, 2))
    """
    stages = chain.stages
    edges = (*chain.edges, *((start + stages, end + stages) for start, end in chain.edges))
    ranks = (*chain.rank_of, *(mirror[rank] for rank in chain.rank_of))
    weights, copy_of = (*range(stages), *range(stages)), (0,) * stages + (1,) * stages
    return Placement(ranks, edges, weights, copy_of, name=f"two copies, {chain.name}")


def _of_chain(ranks: int, copies: int) -> Iterator[Family]:
    chains = [placement.linear(ranks)]
    for chunks in range(2, _MOST_CHUNKS + 1):
        chains += [placement.wave(ranks, chunks), placement.looped(ranks, chunks)]
    yield from map(Family.of_chain, chains)
    if copies == 1 or ranks == 1:
        return
    for chain in chains:
        for mirror in _mirrors(ranks):
            yield Family.of_chain(in_two_copies(chain, mirror))


def _whole_batch(family: Family) -> Family:
    """The same, whose last stage begins its backwards when all its forwards have ended."""
    return replace(family, placement=replace(family.placement, batch_wide=frozenset(family.placement.output_stages)))


def _mirrors(ranks: int) -> list[list[int]]:
    """The other rank of each rank: from the other end, from the other end of its half, and its neighbour."""
    half = ranks // 2
    whole = [ranks - 1 - rank for rank in range(ranks)]
    halves = [*range(half)][::-1] + [*range(half, ranks)][::-1]
    neighbours = [rank ^ 1 if rank ^ 1 < ranks else rank for rank in range(ranks)]
    return [list(found) for found in dict.fromkeys(map(tuple, (whole, halves, neighbours)))]


def _of_towers(work: Workload) -> Iterator[Family]:
    ranks = work.ranks
    tops = range(1, min(len(work.layers), ranks) + 1)
    down, up = [*range(ranks)], [*range(ranks)][::-1]
    ways = [[down] * len(work.towers), [down if index % 2 == 0 else up for index in range(len(work.towers))]]
    for chunks in range(1, _MOST_CHUNKS + 1):
        for way in ways:
            folded = [[r for c in range(chunks) for r in (one if c % 2 == 0 else one[::-1])] for one in way]
            for count in tops:
                for top in (up[:count][::-1], down[:count]):
                    yield _towers(folded, top, batch_wide=bool(work.batch_wide))
    if ranks > len(work.towers):
        yield from _apart(work)


def _apart(work: Workload) -> Iterator[Family]:
    """Every tower on ranks of its own, in proportion to its work, and the rest on the last one."""
    free = work.ranks - 1
    shares = [sum(layer.work for layer in tower) for tower in work.towers]
    total = sum(shares) or 1.0  # towers may take no time
    counts = [max(1, round(free * share / total)) for share in shares]
    while sum(counts) > free:
        counts[counts.index(max(counts))] -= 1
    counts[-1] += free - sum(counts)
    starts = [sum(counts[:index]) for index in range(len(counts))]
    own = [[*range(start, start + count)] for start, count in zip(starts, counts, strict=True)]
    yield _towers(own, [work.ranks - 1], batch_wide=bool(work.batch_wide))


def _in_a_row(work: Workload) -> Family:
    """The layers of all chains one after the other, in as many blocks as there are ranks: that always fits."""
    total = math.fsum(work.speeds)
    shares = [share / total * work.work for share in itertools.accumulate(work.speeds)]
    done = [*itertools.accumulate(layer.work for layer in work.all_layers)]
    rank_of: list[int] = []
    for index, end in enumerate(done):
        now, left = rank_of[-1] if rank_of else 0, len(done) - index
        least = max(now, work.ranks - left)  # a layer has to be left for each rank that follows
        middle = end - work.all_layers[index].work / 2
        wanted = next((rank for rank, share in enumerate(shares) if middle <= share), work.ranks - 1)
        rank_of.append(min(max(least, wanted), now + 1) if rank_of else 0)
    ends = [*itertools.accumulate(map(len, work.chains))]
    *chains, top = ([*dict.fromkeys(rank_of[a:b])] for a, b in itertools.pairwise([0, *ends]))
    return _towers(chains, top, batch_wide=bool(work.batch_wide))


def _towers(chains: Sequence[Sequence[int]], top: Sequence[int], *, batch_wide: bool) -> Family:
    found = placement.towers(*chains, top=top, batch_wide=batch_wide)
    groups, start = [], 0
    for chain in (*chains, top):
        groups.append(tuple(range(start, start + len(chain))))
        start += len(chain)
    return Family(found, tuple(groups))
