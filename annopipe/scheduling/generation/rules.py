"""The rules of a specification, worked out for its placement: what the generator reads, as flat lists of numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import COMPUTE, Action, overlap
from annopipe.scheduling.generation.formulas import compiled_keys
from annopipe.scheduling.generation.given_limits import in_flight_of_ranks, in_flight_of_stages, memory_of_ranks
from annopipe.scheduling.generation.spec_fields import SpecFields
from annopipe.scheduling.generation.ticks import Ticks
from annopipe.scheduling.generation.traversal import key_values, traversal_order, traversals
from annopipe.scheduling.placement import Placement

__all__ = ["Rules"]


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
    def of(cls, spec: SpecFields) -> "Rules":
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
            in_flight_of_ranks(spec),
            in_flight_of_stages(spec),
            memory_of_ranks(spec),
            [costs.activation_of(stage) for stage in range(placement.stages)],
            1.0 - costs.kept_for_weight,
            ticks.seconds,
        )


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


def _times(spec: SpecFields) -> list[float]:
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


def _split(spec: SpecFields) -> list[bool]:
    given, stages = spec.split_backward, spec.placement.stages
    if given is None:
        return ["I" in spec.priority] * stages
    if isinstance(given, tuple):
        return list(given)
    return [given is True] * stages


def _orders(placement: Placement, m: int, text: str) -> list[list[int]]:
    return [traversal_order(placement, m, rank, text) for rank in range(placement.ranks)]


def _turns(orders: list[list[int]], pairs: int) -> list[int]:
    turns = [0] * pairs
    for order in orders:
        for turn, pair in enumerate(order):
            turns[pair] = turn
    return turns


def _strict(spec: SpecFields) -> list[list[int]]:
    placement, m = spec.placement, spec.microbatches
    keyed: list[list[tuple[int, ...]]] = [[] for _ in range(placement.ranks)]
    for kind, text in spec.in_order:
        if kind not in spec.priority:
            raise ScheduleError(f"in_order names {kind!r}, and priority={spec.priority!r} has no such kind")
        keys, position = compiled_keys(text), COMPUTE.index(kind)
        for stage in range(placement.stages):
            columns = [key_values(key, placement, m, stage) for key in keys]
            first = (position * placement.stages + stage) * m
            numbers = (first + k for k in placement.microbatches_of(stage, m))
            keyed[placement.rank_of[stage]] += zip(*columns, numbers, strict=True)
    return [[entry[-1] for entry in sorted(entries)] for entries in keyed]
