"""Rule: a stage does F before B or I, and I before W; where it needs the whole batch, every F before any B or I."""

from collections.abc import Sequence
from operator import lt

from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.problem import problem

__all__ = ["forward_before_backward", "in_order", "whole_batch_first"]


def forward_before_backward(facts: Facts) -> None:
    """Raise ScheduleError for a B or I in front of its F, or a W in front of its I."""
    if not facts.has_backward:
        return
    for stage in range(facts.programs.placement.stages):
        forward, backward = facts.row("F", stage), facts.backward(stage)
        in_order(facts, (("F", stage, forward), ("B", stage, backward)), "a backward needs what its forward left")
        weights = facts.row("W", stage)
        if max(weights, default=-1) >= 0:
            split = [i if w >= 0 else -1 for i, w in zip(facts.row("I", stage), weights, strict=True)]
            in_order(facts, (("I", stage, split), ("W", stage, weights)), "W takes what I left")


def whole_batch_first(facts: Facts) -> None:
    """Raise ScheduleError where a stage that needs the whole batch begins its backward too early."""
    if not facts.has_backward:
        return
    for stage in facts.programs.placement.batch_wide:
        # Positions of whole combinations: what runs together does not wait for each other.
        forward = facts.row("F", stage, facts.begins)
        backward = [position for position in facts.backward(stage, facts.begins) if position >= 0]
        last, first = max(forward, default=-1), min(backward, default=-1)
        if forward and backward and first <= last:
            numbering, programs = facts.programs.numbering, facts.programs
            early, late = facts.place_at(first), facts.place_at(last)
            behind = numbering.text(facts.number("F", stage, forward.index(last)))
            where = f"runs together with {behind}" if early == late else f"is in front of {behind}"
            raise problem(
                programs,
                *early,
                f"{programs.text(*early)} {where}, and the loss of stage {stage} needs the whole batch",
                f"put every F of stage {stage} in front of its first backward",
                also=[late],
            )


def in_order(facts: Facts, pair: Sequence[tuple[str, int, list[int]]], why: str) -> None:
    """Raise ScheduleError where the second of a pair (kind, stage, positions) is not behind the first.

    B stands for whichever of B and I is done. Where the second position is -1 there is nothing to compare.
    """
    (kind, stage, before), (other, other_stage, after) = pair
    if all(map(lt, before, after)):
        return
    for index, (first, second) in enumerate(zip(before, after, strict=True)):
        if second <= first and second >= 0:
            programs = facts.programs
            texts = [
                _text(facts, kind, stage, index, first),
                _text(facts, other, other_stage, index, second),
            ]
            early, late = facts.place_at(second), facts.place_at(first)
            where = "in the same action as" if early == late else "in front of"
            raise problem(
                programs,
                *early,
                f"{texts[1]} is {where} {texts[0]} (step {late[1]})",
                f"put {texts[0]} first: {why}",
                also=[late],
            )


def _text(facts: Facts, kind: str, stage: int, index: int, position: int) -> str:
    number = facts.number(kind, stage, index)
    if kind == "B" and facts.where[number] != position:
        number = facts.number("I", stage, index)
    return facts.programs.numbering.text(number)
