"""Which rank holds which stage, and what flows between stages: the first line of every schedule.

    linear         0 1 2 3             one stage a rank
    looped         0 1 2 3 | 4 5 6 7   interleaved: every rank holds several stages, in turns
    v              0 1 2 3 | 7 6 5 4   two stages a rank, folded: the last stage is on the first rank
    wave           the same with more folds
    bidirectional  two copies of the model, one in each direction: 0 1 2 3 and 7 6 5 4
    towers         two or more chains that meet in a last one
    custom         any map from stages to ranks, with any acyclic edges

>>> from annopipe.scheduling import placement
>>> placement.v(ranks=4)
Placement(v: rank 0: 0 7, rank 1: 1 6, rank 2: 2 5, rank 3: 3 4)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from annopipe.errors import ScheduleError

__all__ = ["Placement", "bidirectional", "custom", "linear", "looped", "towers", "v", "wave", "whole_number"]

Edge = tuple[int, int]
Item = TypeVar("Item")


# No slots: what is derived is kept (cached_property needs the instance's dictionary).
@dataclass(frozen=True, repr=False)
class Placement:
    """Stages on ranks.

    Attributes:
        rank_of: the rank of each stage.
        edges: (from, to) for each output of a stage that another stage takes, sorted; a chain has stage s to s + 1.
        weights_of: for each stage the first stage with the same parameters; a second copy of the model repeats them.
        copy_of: which copy of the model a stage belongs to; microbatches are divided among the copies.
        batch_wide: stages whose loss needs the whole batch: their backward waits for the forward of every microbatch.
        name: what tables call it; not compared.

    Raises ScheduleError when a rank is left without a stage, an edge leads nowhere, edges form a cycle, or copies are
    not numbered as described.
    """

    rank_of: tuple[int, ...]
    edges: tuple[Edge, ...]
    weights_of: tuple[int, ...]
    copy_of: tuple[int, ...]
    batch_wide: frozenset[int] = frozenset()
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        _check(self)
        # The order in which edges were given says nothing: placements are equal when their edges are.
        object.__setattr__(self, "edges", tuple(sorted(self.edges)))

    def __repr__(self) -> str:
        held = (f"rank {rank}: {' '.join(map(str, stages))}" for rank, stages in enumerate(self.stages_on))
        edges = "" if self.is_chain or self.copies > 1 else f"; edges {' '.join(f'{a}-{b}' for a, b in self.edges)}"
        whole = f"; batch-wide {' '.join(map(str, sorted(self.batch_wide)))}" if self.batch_wide else ""
        return f"Placement({self.name}: {', '.join(held)}{edges}{whole})"

    @property
    def stages(self) -> int:
        """How many stages there are, those of all copies together."""
        return len(self.rank_of)

    @cached_property
    def ranks(self) -> int:
        """How many ranks there are."""
        return max(self.rank_of) + 1

    @cached_property
    def copies(self) -> int:
        """How many copies of the model there are: 1, or 2 when bidirectional."""
        return max(self.copy_of) + 1

    @cached_property
    def stages_on(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each rank holds, in ascending order."""
        held: list[list[int]] = [[] for _ in range(self.ranks)]
        for stage, rank in enumerate(self.rank_of):
            held[rank].append(stage)
        return tuple(map(tuple, held))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The stages whose outputs each stage takes."""
        return _grouped(self.stages, ((end, start) for start, end in self.edges))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The stages that take each stage's outputs."""
        return _grouped(self.stages, self.edges)

    @cached_property
    def depth_of(self) -> tuple[int, ...]:
        """How many stages come before each one on the longest way to it."""
        depth = [0] * self.stages
        for stage in _topological(self.stages, self.edges):
            for after in self.successors[stage]:
                depth[after] = max(depth[after], depth[stage] + 1)
        return tuple(depth)

    @cached_property
    def chunk_of(self) -> tuple[int, ...]:
        """The how-manieth stage of its copy on its rank each stage is, in the order of the model."""
        chunk = [0] * self.stages
        for held in self.stages_on:
            for copy in range(self.copies):
                own = sorted((s for s in held if self.copy_of[s] == copy), key=lambda s: (self.depth_of[s], s))
                for index, stage in enumerate(own):
                    chunk[stage] = index
        return tuple(chunk)

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """The stages that take no other's output, those of all copies."""
        return tuple(stage for stage in range(self.stages) if not self.predecessors[stage])

    @cached_property
    def output_stages(self) -> tuple[int, ...]:
        """For each copy of the model, the stage that gives its output: the last of those from which no other takes.

        >>> bidirectional(ranks=2).output_stages
        (1, 3)
        """
        ends = [stage for stage in range(self.stages) if not self.successors[stage]]
        return tuple(max(s for s in ends if self.copy_of[s] == copy) for copy in range(self.copies))

    @property
    def is_chain(self) -> bool:
        """Whether the stages are one chain, 0 to 1 to 2 and so on: what torch.distributed.pipelining can run."""
        return self.edges == tuple(pairwise(range(self.stages)))

    def microbatches_of(self, stage: int, microbatches: int) -> range:
        """The microbatches that a stage sees: all, or its copy's share, the first copy's first.

        >>> [bidirectional(ranks=2).microbatches_of(stage, 5) for stage in (0, 3)]
        [range(0, 3), range(3, 5)]
        """
        copy, copies = self.copy_of[stage], self.copies
        share, rest = divmod(microbatches, copies)
        start = copy * share + min(copy, rest)
        return range(start, start + share + (copy < rest))


def linear(ranks: int) -> Placement:
    """One stage a rank."""
    return _chain(range(whole_number(ranks, "ranks")), "linear")


def looped(ranks: int, chunks: int) -> Placement:
    """Interleaved: stage s on rank s modulo ranks, `chunks` stages a rank.

    >>> looped(ranks=2, chunks=2)
    Placement(looped: rank 0: 0 2, rank 1: 1 3)
    """
    whole_number(chunks, "chunks")
    return _chain([*range(whole_number(ranks, "ranks"))] * chunks, "looped")


def wave(ranks: int, chunks: int) -> Placement:
    """Folded: the chain goes down the ranks and up again, `chunks` times over them.

    >>> wave(ranks=2, chunks=3)
    Placement(wave: rank 0: 0 3 4, rank 1: 1 2 5)
    """
    down = [*range(whole_number(ranks, "ranks"))]
    folds = [down[::-1] if chunk % 2 else down for chunk in range(whole_number(chunks, "chunks"))]
    return _chain([rank for fold in folds for rank in fold], "wave")


def v(ranks: int) -> Placement:
    """Folded once: two stages a rank, the first and the last stage on rank 0."""
    return _chain(wave(ranks, 2).rank_of, "v")


def bidirectional(ranks: int) -> Placement:
    """Two copies of a model with one stage a rank, the second from the last rank to the first.

    Stages 0 to ranks - 1 are the first copy, the others the second; stage `ranks + s` has the parameters of stage s.

    >>> bidirectional(ranks=2)
    Placement(bidirectional: rank 0: 0 3, rank 1: 1 2)
    """
    down = [*range(whole_number(ranks, "ranks"))]
    edges = (*pairwise(range(ranks)), *pairwise(range(ranks, 2 * ranks)))
    return Placement((*down, *down[::-1]), edges, (*down, *down), (0,) * ranks + (1,) * ranks, name="bidirectional")


def towers(*chains: Sequence[int], top: Sequence[int], batch_wide: bool = False) -> Placement:
    """Chains of stages that meet: each chain, and the `top` where they meet, is given as the ranks of its stages.

    `batch_wide`: the loss of the last stage needs the whole batch (a contrastive loss).

    >>> two = towers([0, 1], [2], top=[3])
    >>> two.edges
    ((0, 1), (1, 3), (2, 3))
    """
    if not chains or not all(isinstance(chain, Sequence) and chain for chain in (*chains, top)):
        raise ScheduleError("towers() needs at least one chain, a top, and a rank for at least one stage in each")
    rank_of: list[int] = []
    edges: list[Edge] = []
    ends = []
    for chain in chains:
        edges += pairwise(range(len(rank_of), len(rank_of) + len(chain)))
        rank_of += chain
        ends.append(len(rank_of) - 1)
    edges += [(end, len(rank_of)) for end in ends]
    edges += pairwise(range(len(rank_of), len(rank_of) + len(top)))
    rank_of += top
    last = frozenset({len(rank_of) - 1}) if batch_wide else frozenset()
    return custom(rank_of, edges, batch_wide=last, name="towers")


def custom(
    rank_of: Sequence[int],
    edges: Sequence[Edge] | None = None,
    *,
    batch_wide: Iterable[int] = (),
    name: str = "custom",
) -> Placement:
    """Any map from stages to ranks; `edges` None is a chain in the order of the stages.

    >>> custom([0, 1, 1, 0]).stages_on
    ((0, 3), (1, 2))
    """
    ranks = tuple(_several(rank_of, "rank_of"))
    given = pairwise(range(len(ranks))) if edges is None else _several(edges, "edges")
    found = tuple(tuple(edge) if isinstance(edge, list) else edge for edge in given)
    stages = tuple(range(len(ranks)))
    return Placement(ranks, found, stages, (0,) * len(ranks), frozenset(_several(batch_wide, "batch_wide")), name)


def _chain(rank_of: Sequence[int], name: str) -> Placement:
    return custom(rank_of, name=name)


def _several(given: Iterable[Item], name: str) -> Iterable[Item]:
    if not isinstance(given, Iterable):
        raise ScheduleError(f"{name}={given!r}: give one entry or more in a list")
    return given


def whole_number(value: int, name: str) -> int:
    """A count that a user gives: itself when it is a whole number, 1 or more.

    Raises ScheduleError otherwise.
    """
    if type(value) is not int or value < 1:
        raise ScheduleError(f"{name}={value!r}: give a whole number, 1 or more")
    return value


def _grouped(stages: int, pairs: Iterable[Edge]) -> tuple[tuple[int, ...], ...]:
    """For each stage the second entries of the pairs that begin with it, in their order."""
    found: list[list[int]] = [[] for _ in range(stages)]
    for stage, other in pairs:
        found[stage].append(other)
    return tuple(map(tuple, found))


def _topological(stages: int, edges: Sequence[Edge]) -> list[int]:
    """The stages with each before its successors; shorter than `stages` when there is a cycle."""
    missing = [0] * stages
    after: list[list[int]] = [[] for _ in range(stages)]
    for start, end in edges:
        missing[end] += 1
        after[start].append(end)
    order = [stage for stage in range(stages) if not missing[stage]]
    for stage in order:
        for end in after[stage]:
            missing[end] -= 1
            if not missing[end]:
                order.append(end)
    return order


def _check(placement: Placement) -> None:
    stages = len(placement.rank_of)
    if not stages or any(type(rank) is not int or rank < 0 for rank in placement.rank_of):
        raise ScheduleError("a placement needs at least one stage, and ranks are whole numbers from 0")
    held = sorted(set(placement.rank_of))
    empty = [rank for rank, found in enumerate(held) if rank != found]
    if empty:
        raise ScheduleError(f"rank {empty[0]} holds no stage; number the ranks from 0 without gaps")
    for edge in placement.edges:
        if (
            not isinstance(edge, tuple)
            or len(edge) != 2
            or edge[0] == edge[1]
            or not all(type(end) is int and 0 <= end < stages for end in edge)
        ):
            raise ScheduleError(f"edge {edge} does not join two of the stages 0 to {stages - 1}")
    if len(set(placement.edges)) < len(placement.edges):
        raise ScheduleError("an edge is given twice; a stage's output goes to another stage once")
    if len(_topological(stages, placement.edges)) < stages:
        raise ScheduleError("the edges form a cycle; a stage cannot come after itself")
    if not isinstance(placement.batch_wide, frozenset) or not placement.batch_wide <= set(range(stages)):
        raise ScheduleError(f"batch_wide names a stage that is not there; stages are 0 to {stages - 1}")
    _check_copies(placement, stages)


def _check_copies(placement: Placement, stages: int) -> None:
    if len(placement.weights_of) != stages or len(placement.copy_of) != stages:
        raise ScheduleError(f"there are {stages} stages: give weights_of and copy_of one entry for each")
    if set(placement.copy_of) != set(range(max(placement.copy_of) + 1)):
        raise ScheduleError("copy_of numbers the copies of the model from 0 without gaps")
    for stage, first in enumerate(placement.weights_of):
        if not 0 <= first <= stage or placement.weights_of[first] != first:
            raise ScheduleError(f"weights_of[{stage}] is {first}: name the first stage with the same parameters")
    if any(placement.copy_of[a] != placement.copy_of[b] for a, b in placement.edges):
        raise ScheduleError("an edge joins two copies of the model; copies share parameters, nothing else")
