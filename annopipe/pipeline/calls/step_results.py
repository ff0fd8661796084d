"""What a step has left on the stages of one rank for its caller."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from annopipe.pipeline.stages.stage import LocalStage
from annopipe.scheduling.placement import Placement

__all__ = ["in_order", "of_last"]

T = TypeVar("T")


def of_last(
    stages: Mapping[int, LocalStage], placement: Placement, kept: Callable[[LocalStage], Mapping[int, T]]
) -> list[T] | None:
    """What the last stages that are here have kept, for each microbatch; None where there is no last stage.

    The copy of a model that sees no microbatch has kept nothing, which is an empty list.
    """
    found: dict[int, T] = {}
    here = [stages[index] for index in placement.output_stages if index in stages]
    for stage in here:
        found |= kept(stage)
    return in_order(found) if here else None


def in_order(by_microbatch: Mapping[int, T]) -> list[T]:
    """The values of all microbatches.

    >>> in_order({1: "b", 0: "a"})
    ['a', 'b']
    """
    return [by_microbatch[microbatch] for microbatch in sorted(by_microbatch)]
