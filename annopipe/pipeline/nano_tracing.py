"""Trace the stages of a schedule that run microbatches as nano-batches, at each length that a nano-batch has.

The chain of stages up to these is traced again for every length, by the same means as for whole microbatches, so that
each rank knows what crosses. Lengths are agreed on first: only the ranks that a step gives tensors can see them.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import accumulate

from torch import nn

from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.pipeline.calls.microbatch_calls import Call
from annopipe.pipeline.calls.microbatches import BatchDims
from annopipe.pipeline.calls.nano_batch_calls import batch_length, nano_batch_call, nano_batch_lengths
from annopipe.pipeline.ranks.peers import AgreedError, Peers
from annopipe.pipeline.stages.lanes import NanoBatches
from annopipe.pipeline.stages.liveness import only_live
from annopipe.scheduling.schedule_class import Schedule

__all__ = ["NanoBatchGraphs", "counts_of", "nano_batches_of", "traced_parts"]

# By stage of this rank and number of nano-batches: the length of each, and its graphs.
NanoBatchGraphs = Mapping[tuple[int, int], list[tuple[int, StageGraphs]]]
# Traces stages, and those that they take from, for a call; this rank's graphs. The text says what for.
TraceAgain = Callable[[Call, AbstractSet[int], str], Mapping[int, StageGraphs]]


def counts_of(schedule: Schedule) -> dict[tuple[int, int], int]:
    """By stage and microbatch: the number of nano-batches, for those that do not run as a whole.

    >>> from annopipe.scheduling import placement
    >>> counts_of(Schedule.of(placement.linear(1), 2, [["0F0/2", "0F1", "0B0/2", "0B1"]]))
    {(0, 0): 2}
    """
    found = {}
    for program in schedule.ranks:
        for action in program:
            for part in action.singles:
                if part.nano_batches > 1 and part.microbatch is not None:
                    found[part.stage, part.microbatch] = part.nano_batches
    return found


def traced_parts(
    schedule: Schedule, call: Call, dims: BatchDims, modules: Mapping[int, nn.Module], peers: Peers, again: TraceAgain
) -> NanoBatchGraphs:
    """The graphs of this rank's stages for the nano-batches of a schedule; nothing where it has none.

    Args:
        schedule: which stages run what as nano-batches.
        call: of one microbatch.
        dims: the dimension of the batch in its arguments.
        modules: of this rank, by stage.
        peers: who all do this together.
        again: see ``TraceAgain``.

    Raises AgreedError, on every rank, where a microbatch cannot be cut, or a stage not be traced for a part of it.
    """
    wanted = sorted({(stage, count) for (stage, _), count in counts_of(schedule).items()})
    if not wanted:
        return {}
    placement = schedule.placement
    first = next((modules[stage] for stage in placement.sources if stage in modules), None)
    own = peers.together(partial(batch_length, call, first, dims), "cutting a microbatch into nano-batches")
    told = peers.gather(own, "the length of a microbatch")
    known = {rank: length for rank, length in enumerate(told) if length is not None}
    if len(set(known.values())) != 1:
        said = ", ".join(f"{length} on rank {rank}" for rank, length in known.items())
        raise AgreedError(
            f"a microbatch has sequences of different number ({said}) and cannot be cut into nano-batches: "
            "batch_dims of Pipeline says which dimension of an argument is the batch, None for none"
            if known
            else "the schedule has nano-batches, and step was called with no tensor that could be cut into them: call "
            "it with one, of which batch_dims of Pipeline does not say None, or take a schedule without nano-batches"
        )
    (length,) = set(known.values())
    for stage, count in wanted:
        if count > length:
            raise AgreedError(_too_short(stage, count, length))
    lengths = {(stage, count): nano_batch_lengths(length, count) for stage, count in wanted}
    graphs: dict[int, Mapping[int, StageGraphs]] = {}
    for each in sorted({found for of_stage in lengths.values() for found in of_stage}, reverse=True):
        stages = {stage for (stage, _), of_stage in lengths.items() if each in of_stage}
        of_stage = next(found for found in lengths.values() if each in found)
        start = [0, *accumulate(of_stage)][of_stage.index(each)]
        cut = nano_batch_call(call, first, dims, start, each)
        graphs[each] = again(cut, _with_all_before(schedule, stages), f"for a nano-batch of {each} of {length}")
    return {
        (stage, count): [(each, graphs[each][stage]) for each in of_stage]
        for (stage, count), of_stage in lengths.items()
        if stage in modules
    }


def nano_batches_of(
    stage: int,
    whole: StageGraphs,
    arriving: frozenset[str],
    parts: NanoBatchGraphs,
    schedule: Schedule,
    auxiliary: str | None,
) -> dict[int, NanoBatches]:
    """What the microbatches of a stage run as that do not run as a whole.

    Args:
        stage: its number.
        whole: its graphs for a whole microbatch.
        arriving: the outputs whose gradients come.
        parts: the graphs of nano-batches.
        schedule: which microbatches run as how many.
        auxiliary: how auxiliary losses of nano-batches count.

    Raises PipelineError for a stage that cannot be run so.
    """
    made = {}
    for (index, count), found in parts.items():
        if index == stage:
            live = [only_live(graphs, arriving) for _, graphs in found]
            made[count] = NanoBatches(stage, whole, live, [length for length, _ in found], auxiliary)
    return {mb: made[count] for (index, mb), count in counts_of(schedule).items() if index == stage}


def _too_short(stage: int, count: int, length: int) -> str:
    has = f"{length} sequences" if length != 1 else "one sequence"
    return (
        f"stage {stage} runs microbatches as {count} nano-batches, and a microbatch has {has}: run it whole, and split "
        f"the tokens inside the model, around its mixture of experts, with ap.nano_batches(x, {count}); or give a step "
        "fewer microbatches"
    )


def _with_all_before(schedule: Schedule, stages: AbstractSet[int]) -> set[int]:
    """The stages with those that they take from, and those before these."""
    found, pending = set[int](), list(stages)
    while pending:
        stage = pending.pop()
        if stage not in found:
            found.add(stage)
            pending += schedule.placement.predecessors[stage]
    return found
