"""The calls of a step, one for each microbatch: cut from a batch, or given as they are."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from annopipe.errors import PipelineError
from annopipe.graphs.arguments import TARGET
from annopipe.pipeline.calls.microbatches import BatchDims, positional_names, split_batch
from annopipe.pipeline.calls.signatures import key_of, signature_text
from annopipe.pipeline.ranks.peers import AgreedError

__all__ = ["Call", "check_lengths", "cut_calls", "key_of_calls", "split_calls"]


@dataclasses.dataclass(frozen=True)
class Call:
    """One microbatch of a step, as far as this rank has it.

    lengths: of the whole batch in what it was cut from, by path.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Any
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)

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
    return [Call(tuple(values.values()), kwargs, found[TARGET], lengths) for values, kwargs, found in parts]


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


def check_lengths(told: Sequence[tuple[int, Mapping[str, int]]]) -> None:
    """Raises AgreedError when ranks, each of which has seen its own part of a call, have batches of different lengths.

    Args:
        told: ranks, each with the lengths of its calls; by all ranks alike.

    >>> check_lengths([(0, {"x": 8}), (1, {"target": 16})])
    >>> try:
    ...     check_lengths([(0, {"x": 8}), (1, {"target": 4})])
    ... except AgreedError as error:
    ...     print(str(error).partition(";")[0])
    target is 4 long on rank 1, and x has a batch of 8 on rank 0
    """
    first: tuple[str, int, int] | None = None
    found = ((_is_target(path), path, length, rank) for rank, lengths in told for path, length in lengths.items())
    for is_target, path, length, rank in sorted(found, key=lambda each: each[0]):
        first = first or (path, length, rank)
        # A target may have several rows for each of the inputs'.
        if length % first[1] if is_target and first[1] else length != first[1]:
            raise AgreedError(
                f"{path} is {length} long on rank {rank}, and {first[0]} has a batch of {first[1]} on rank {first[2]}; "
                f"batch_dims={{{path!r}: None}} of Pipeline gives it to every microbatch whole"
            )


def _is_target(path: str) -> bool:
    return path.partition(".")[0] == TARGET
