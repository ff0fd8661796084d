"""The rules of a specification, worked out for its placement: what the generator reads, as flat lists of numbers."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import COMPUTE, Action, overlap
from annopipe.scheduling.formulas import Formula, compiled, compiled_keys
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.ticks import Ticks

__all__ = ["Limit", "Rules", "Spec", "traversal_order", "traversals", "values_of"]

Limit = int | str | tuple[int, ...] | None
T = TypeVar("T")
_OF_STAGE = {"s", "c"}

_FORWARD = {"depth-first": "k, c", "breadth-first": "c, k"}
_BACKWARD = {"depth-first": "k, v - 1 - c", "breadth-first": "v - 1 - c, k"}


class Spec(Protocol):
    """What is read of a `ScheduleSpec`."""

    @property
    def placement(self) -> Placement: ...  # noqa: D102
    @property
    def microbatches(self) -> int: ...  # noqa: D102
    @property
    def priority(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def split_backward(self) -> bool | str | tuple[bool, ...] | None: ...  # noqa: D102
    @property
    def traversal(self) -> str: ...  # noqa: D102
    @property
    def backward_traversal(self) -> str | None: ...  # noqa: D102
    @property
    def in_order(self) -> tuple[tuple[str, str], ...]: ...  # noqa: D102
    @property
    def in_flight(self) -> Limit: ...  # noqa: D102
    @property
    def memory(self) -> float | tuple[float, ...] | None: ...  # noqa: D102
    @property
    def pair(self) -> tuple[str, str] | None: ...  # noqa: D102
    @property
    def phases(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def layout_for(self) -> str: ...  # noqa: D102
    @property
    def operations(self) -> tuple[Operation, ...]: ...  # noqa: D102
    @property
    def costs(self) -> ActionCosts: ...  # noqa: D102


@dataclass(frozen=True)
class Rules:
    """Rules as lists; a pair is stage * microbatches + microbatch, a number is kind * pairs + pair as in `Numbering`.

    Attributes:
        durations: ticks of F, B, I and W, by number.
        combined: ticks of a combination of two numbers.
        delays: ticks until a stage's message arrives on another rank.
        split: for each stage, whether its backward is I and W.
        unpaired: whether a backward that finds no partner is split after all.
        has_backward: whether there is a backward at all.
        forward_order, backward_order: per rank, its pairs in the order of the traversal.
        forward_turn, backward_turn: by pair, its position in that order.
        strict: per rank, numbers that run in exactly this order; empty where there is no such rule.
        in_flight, memory: per rank, None without limit; stage_in_flight: per stage.
        activation: what a forward of each stage holds; freed_by_input: the share of it that I gives back.
        seconds: the inverse of ticks.
    """

    placement: Placement
    microbatches: int
    priority: tuple[str, ...]
    pair: tuple[str, str] | None
    durations: list[int]
    combined: Callable[[int, int], int]
    delays: list[int]
    split: list[bool]
    unpaired: bool
    has_backward: bool
    forward_order: list[list[int]]
    backward_order: list[list[int]]
    forward_turn: list[int]
    backward_turn: list[int]
    strict: list[list[int]]
    in_flight: list[int | None]
    stage_in_flight: list[int | None]
    memory: list[float | None]
    activation: list[float]
    freed_by_input: float
    seconds: Callable[[int], float]

    @classmethod
    def of(cls, spec: Spec) -> "Rules":
        """Work out the rules of a specification.

        Raises ScheduleError for a formula that is none, or a limit that no microbatch can pass under.
        """
        placement, m, costs = spec.placement, spec.microbatches, spec.costs
        split = _split(spec)
        orders = [_orders(placement, m, text) for text in traversals(spec)]
        times = _times(spec)
        delays = [costs.times("send", stage, 1)[0] + costs.latency for stage in range(placement.stages)]
        pair_times = _PairTimes(costs, placement.stages, m)
        ticks = Ticks(chain(times, delays, pair_times.values(spec.pair)))
        return cls(
            placement,
            m,
            spec.priority,
            spec.pair,
            [ticks.of(time) for time in times],
            lambda first, second: ticks.of(pair_times.of(first, second)),
            [ticks.of(delay) for delay in delays],
            split,
            spec.split_backward == "unpaired",
            any(kind in spec.priority for kind in ("B", "I")),
            orders[0],
            orders[1],
            _turns(orders[0], placement.stages * m),
            _turns(orders[1], placement.stages * m),
            _strict(spec),
            _in_flight(spec),
            _stage_in_flight(spec),
            _memory(spec),
            [costs.activation_of(stage) for stage in range(placement.stages)],
            1.0 - costs.kept_for_weight,
            ticks.seconds,
        )


def traversals(spec: Spec) -> tuple[str, str]:
    """The formulas of the orders of forwards and of backwards."""
    return _FORWARD.get(spec.traversal, spec.traversal), _backward_traversal(spec)


def traversal_order(placement: Placement, m: int, rank: int, text: str) -> list[int]:
    """The pairs of a rank in the order of a formula; ties go to the earlier stage, then the earlier microbatch."""
    keyed: list[tuple[int, ...]] = []
    keys = compiled_keys(text)
    for stage in placement.stages_on[rank]:
        columns = [_column(key, placement, m, stage) for key in keys]
        keyed += zip(*columns, (stage * m + k for k in placement.microbatches_of(stage, m)), strict=True)
    keyed.sort()
    return [entry[-1] for entry in keyed]


def _column(key: Formula, placement: Placement, m: int, stage: int) -> Iterable[int]:
    """The values of one key for every microbatch of a stage."""
    values, count = values_of(placement, m, stage), len(placement.microbatches_of(stage, m))
    if "k" not in key.names:
        return [key(values)] * count
    return range(count) if key.text == "k" else [key({**values, "k": k}) for k in range(count)]


def values_of(placement: Placement, microbatches: int, stage: int) -> dict[str, int]:
    """What the names of a formula stand for on a stage; "k" is added by who needs it."""
    rank = placement.rank_of[stage]
    copy = placement.copy_of[stage]
    chunks = sum(placement.copy_of[other] == copy for other in placement.stages_on[rank])
    chunk = placement.chunk_of[stage]
    return {"p": placement.ranks, "r": rank, "m": microbatches, "v": chunks, "s": stage, "c": chunk, "k": 0}


class _PairTimes:
    """Times of combinations, asked for once per pair of stages."""

    def __init__(self, costs: ActionCosts, stages: int, microbatches: int) -> None:
        self._costs, self._stages, self._m = costs, stages, microbatches
        self._known: dict[tuple[int, ...], float] = {}

    def of(self, first: int, second: int) -> float:
        """The time of two numbers as one combination."""
        block = self._stages * self._m
        key = (*divmod(first // self._m, self._stages), *divmod(second // self._m, self._stages))
        if key not in self._known:
            parts = tuple(
                Action(COMPUTE[number // block], number % block // self._m, number % self._m)
                for number in (first, second)
            )
            self._known[key] = self._costs.duration(overlap(*parts))
        return self._known[key]

    def values(self, pair: tuple[str, str] | None) -> list[float]:
        """The times of all combinations of a pair of kinds, for every two stages."""
        if pair is None:
            return []
        block = self._stages * self._m
        firsts, seconds = (COMPUTE.index(kind) * block for kind in pair)
        last = self._m - 1
        stages = range(self._stages)
        return [
            self.of(firsts + a * self._m, seconds + b * self._m + last)
            for a in stages
            for b in stages
            if a != b or last
        ]


def _times(spec: Spec) -> list[float]:
    """Times of F, B, I and W by number, with the operations on the computation that belong to them."""
    stages, m = spec.placement.stages, spec.microbatches
    times = [time for kind in COMPUTE for stage in range(stages) for time in spec.costs.times(kind, stage, m)]
    for operation in spec.operations:
        if operation.resource == "compute" and operation.per == "microbatch":
            for position, kind in enumerate(COMPUTE):
                for stage in range(stages):
                    if operation.applies_to(stage) and operation.anchors(Action(kind, stage, 0)):
                        first = (position * stages + stage) * m
                        times[first : first + m] = [time + operation.time for time in times[first : first + m]]
    return times


def _split(spec: Spec) -> list[bool]:
    given, stages = spec.split_backward, spec.placement.stages
    if given is None:
        return ["I" in spec.priority] * stages
    if isinstance(given, tuple):
        return list(given)
    return [given is True] * stages


def _backward_traversal(spec: Spec) -> str:
    if spec.backward_traversal is not None:
        return _BACKWARD.get(spec.backward_traversal, spec.backward_traversal)
    if spec.traversal in _BACKWARD:
        return _BACKWARD[spec.traversal]
    # The same order from the last chunk to the first.
    return re.sub(r"\bc\b", "(v - 1 - c)", spec.traversal)


def _orders(placement: Placement, m: int, text: str) -> list[list[int]]:
    return [traversal_order(placement, m, rank, text) for rank in range(placement.ranks)]


def _turns(orders: list[list[int]], pairs: int) -> list[int]:
    turns = [0] * pairs
    for order in orders:
        for turn, pair in enumerate(order):
            turns[pair] = turn
    return turns


def _strict(spec: Spec) -> list[list[int]]:
    placement, m = spec.placement, spec.microbatches
    keyed: list[list[tuple[int, ...]]] = [[] for _ in range(placement.ranks)]
    for kind, text in spec.in_order:
        if kind not in spec.priority:
            raise ScheduleError(f"in_order names {kind!r}, and priority={spec.priority!r} has no such kind")
        keys, position = compiled_keys(text), COMPUTE.index(kind)
        for stage in range(placement.stages):
            columns = [_column(key, placement, m, stage) for key in keys]
            first = (position * placement.stages + stage) * m
            numbers = (first + k for k in placement.microbatches_of(stage, m))
            keyed[placement.rank_of[stage]] += zip(*columns, numbers, strict=True)
    return [[entry[-1] for entry in sorted(entries)] for entries in keyed]


def _in_flight(spec: Spec) -> list[int | None]:
    given, placement = spec.in_flight, spec.placement
    if isinstance(given, str) and compiled(given).names & _OF_STAGE:
        return [None] * placement.ranks
    limits: list[int | None] = []
    for rank, stages in enumerate(placement.stages_on):
        chunks = max(placement.chunk_of[stage] for stage in stages) + 1
        if isinstance(given, str):
            limit: int | None = compiled(given)(values_of(placement, spec.microbatches, stages[0]))
        else:
            limit = per_rank(given, rank, placement, "in_flight")
        if limit is not None and limit < chunks:
            raise ScheduleError(
                f"in_flight={given!r} is {limit} on rank {rank}, which holds {chunks} stages of a microbatch at once; "
                f"give {chunks} or more"
            )
        limits.append(limit)
    return limits


def _stage_in_flight(spec: Spec) -> list[int | None]:
    given, placement = spec.in_flight, spec.placement
    if not isinstance(given, str) or not compiled(given).names & _OF_STAGE:
        return [None] * placement.stages
    limits = [compiled(given)(values_of(placement, spec.microbatches, stage)) for stage in range(placement.stages)]
    for stage, limit in enumerate(limits):
        if limit < 1:
            raise ScheduleError(f"in_flight={given!r} is {limit} for stage {stage}; a stage needs 1 or more")
    return [*limits]


def _memory(spec: Spec) -> list[float | None]:
    placement, costs = spec.placement, spec.costs
    limits: list[float | None] = []
    for rank, stages in enumerate(placement.stages_on):
        limit = per_rank(spec.memory, rank, placement, "memory")
        needed = max(
            sum(costs.activation_of(stage) for stage in stages if placement.copy_of[stage] == copy)
            for copy in range(placement.copies)
        )
        if limit is not None and limit < needed:
            raise ScheduleError(
                f"memory={limit} on rank {rank}: one microbatch keeps {needed} there; give {needed} or more"
            )
        limits.append(limit)
    return limits


def per_rank(given: T | tuple[T, ...] | None, rank: int, placement: Placement, name: str) -> T | None:
    """One rank's share of what is given once for all ranks, or once for each.

    Raises ScheduleError when there is another count than there are ranks.
    """
    if not isinstance(given, tuple):
        return given
    if len(given) != placement.ranks:
        raise ScheduleError(f"{name} has {len(given)} entries and there are {placement.ranks} ranks; give one for each")
    return given[rank]
