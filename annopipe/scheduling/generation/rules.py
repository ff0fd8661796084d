"""The rules of a specification, worked out for its placement: what the generator reads, as flat lists of numbers."""

from dataclasses import dataclass

from annopipe.scheduling.actions import COMPUTE
from annopipe.scheduling.generation.formulas import compiled_keys
from annopipe.scheduling.generation.given_limits import (
    activation_of,
    in_flight_of_ranks,
    in_flight_of_stages,
    memory_of_ranks,
)
from annopipe.scheduling.generation.rule_times import RuleTimes
from annopipe.scheduling.generation.spec_fields import SpecFields
from annopipe.scheduling.generation.traversal import key_values, traversal_order, traversals
from annopipe.scheduling.placement import Placement

__all__ = ["Rules"]


@dataclass(frozen=True)
class Rules:
    """Rules as lists; a pair is stage * microbatches + microbatch, a number is kind * pairs + pair as in `Numbering`.

    Attributes:
        times: how long everything takes.
        split: for each stage, whether its backward is I and W.
        unpaired: whether a backward that finds no partner is split after all.
        has_backward: whether there is a backward at all.
        forward_order, backward_order: per rank, its pairs in the order of the traversal.
        forward_turn, backward_turn: by pair, its position in that order.
        strict: per rank, numbers that run in exactly this order; empty where there is no such rule.
        strict_kinds: the kinds of these numbers.
        in_flight, memory: per rank, None without limit; stage_in_flight: per stage.
        activation: what a forward of each stage holds; freed_by_input: the share of it that I gives back, per stage.
    """

    placement: Placement
    microbatches: int
    priority: tuple[str, ...]
    pair: tuple[str, str] | None
    times: RuleTimes
    split: list[bool]
    unpaired: bool
    has_backward: bool
    forward_order: list[list[int]]
    backward_order: list[list[int]]
    forward_turn: list[int]
    backward_turn: list[int]
    strict: list[list[int]]
    strict_kinds: frozenset[str]
    in_flight: list[int | None]
    stage_in_flight: list[int | None]
    memory: list[float | None]
    activation: list[float]
    freed_by_input: list[float]

    @classmethod
    def of(cls, spec: SpecFields) -> "Rules":
        """Work out the rules of a specification.

        Raises ScheduleError for a formula without a value, or a limit that no microbatch can pass under.
        """
        placement, m = spec.placement, spec.microbatches
        split = _split(spec)
        forwards, backwards = (
            [traversal_order(placement, m, rank, text) for rank in range(placement.ranks)] for text in traversals(spec)
        )
        return cls(
            placement=placement,
            microbatches=m,
            priority=spec.priority,
            pair=spec.pair,
            times=RuleTimes(spec),
            split=split,
            unpaired=spec.split_backward == "unpaired",
            has_backward=spec.has_backward,
            forward_order=forwards,
            backward_order=backwards,
            forward_turn=_turns(forwards, placement.stages * m),
            backward_turn=_turns(backwards, placement.stages * m),
            strict=_strict(spec, split),
            strict_kinds=frozenset(kind for kind, _ in spec.in_order),
            in_flight=in_flight_of_ranks(spec),
            stage_in_flight=in_flight_of_stages(spec),
            memory=memory_of_ranks(spec),
            activation=[activation_of(spec, stage) for stage in range(placement.stages)],
            freed_by_input=[1.0 - min(spec.costs.kept_for_weight_of(s), 1.0) for s in range(placement.stages)],
        )


def _split(spec: SpecFields) -> list[bool]:
    given, stages = spec.split_backward, spec.placement.stages
    if given is None:
        return ["I" in spec.priority] * stages
    return list(given) if isinstance(given, tuple) else [given is True] * stages


def _turns(orders: list[list[int]], pairs: int) -> list[int]:
    turns = [0] * pairs
    for order in orders:
        for turn, pair in enumerate(order):
            turns[pair] = turn
    return turns


def _strict(spec: SpecFields, split: list[bool]) -> list[list[int]]:
    placement, m = spec.placement, spec.microbatches
    keyed: list[list[tuple[int, ...]]] = [[] for _ in range(placement.ranks)]
    for kind, text in spec.in_order:
        keys, position = compiled_keys(text), COMPUTE.index(kind)
        for stage in range(placement.stages):
            if kind != "F" and split[stage] != (kind in ("I", "W")):
                continue  # the stage has the other form of the backward
            columns = [key_values(key, placement, m, stage) for key in keys]
            first = (position * placement.stages + stage) * m
            numbers = (first + k for k in placement.microbatches_of(stage, m))
            keyed[placement.rank_of[stage]] += zip(*columns, numbers, strict=True)
    return [[entry[-1] for entry in sorted(entries)] for entries in keyed]
