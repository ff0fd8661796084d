"""The calls of a step, one for each microbatch: cut from a batch, or given as they are."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from annopipe.errors import PipelineError
from annopipe.graphs.arguments import TARGET
from annopipe.pipeline.calls.microbatches import BatchDims, positional_names, signature_text, split_batch
from annopipe.pipeline.calls.signatures import key_of

__all__ = ["Call", "cut_calls", "key_of_calls", "split_calls"]


@dataclasses.dataclass(frozen=True)
class Call:
    """One microbatch of a step, as far as this rank has it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Any

    def named(self, first: nn.Module | None) -> dict[str, Any]:
        """All arguments by name; positional ones only where the first stage is."""
        names = positional_names(first, len(self.args)) if first is not None else []
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs, TARGET: self.target}


def split_calls(
    first: nn.Module | None,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    target: Any,
    microbatches: int,
    dims: BatchDims,
) -> list[Call]:
    """The calls for one batch.

    Args:
        first: the first stage; None where it is on another rank, and its inputs do not matter.
        inputs, kwargs, target: of the whole batch.
        dims: the dimensions that are cut.
    """
    lengths: dict[str, int] = {}
    names = positional_names(first, len(inputs)) if first is not None else []
    args = split_batch(dict(zip(names, inputs, strict=False)), microbatches, dims, lengths)
    named = split_batch(kwargs, microbatches, dims, lengths)
    targets = split_batch({TARGET: target}, microbatches, dims, lengths)
    parts = zip(args, named, targets, strict=True)
    return [Call(tuple(values.values()), kwargs, found[TARGET]) for values, kwargs, found in parts]


def cut_calls(
    args: Sequence[tuple[Any, ...]] | None,
    kwargs: Sequence[Mapping[str, Any]] | None,
    targets: Sequence[Any] | None,
    microbatches: int,
    *,
    has_first: bool,
) -> list[Call]:
    """The calls for microbatches that are there already.

    Args:
        args, kwargs, targets: one entry for each microbatch, or None.
        has_first: whether the first stage is here, and positional arguments matter.

    Raises PipelineError when there are more or fewer.
    """
    for what, given in (("args", args), ("kwargs", kwargs), ("targets", targets)):
        if given is not None and len(given) != microbatches:
            raise PipelineError(f"{what} has {len(given)} entries and the schedule {microbatches} microbatches")
    return [
        Call(args[m] if args and has_first else (), kwargs[m] if kwargs else {}, targets[m] if targets else None)
        for m in range(microbatches)
    ]


def key_of_calls(calls: Sequence[Call]) -> Hashable:
    """The key that all microbatches share.

    Raises PipelineError when they do not.
    """
    first, *others = [key_of((call.args, call.kwargs, call.target)) for call in calls]
    for microbatch, other in enumerate(others, start=1):
        if other != first:
            texts = [signature_text((call.args, call.kwargs, call.target)) for call in (calls[microbatch], calls[0])]
            raise PipelineError(
                f"microbatch {microbatch} has other shapes, dtypes or constants than microbatch 0, {texts[0]} and not "
                f"{texts[1]}: pad it, and pass what differs as a tensor"
            )
    return first
