"""What a rank finds out by itself about how a pipeline is made and called, before it says anything to another."""

import os
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from annopipe.capturing.graphs import captured_device
from annopipe.errors import PipelineError
from annopipe.graphs.recompute_choice import RecomputeChoice
from annopipe.ordering.registry import Policy, find
from annopipe.pipeline.data_parallel.gathering import made_of
from annopipe.scheduling.actions import BACKWARDS, BUILTIN_KINDS
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.routes import routes
from annopipe.scheduling.schedule_class import Schedule

__all__ = [
    "check_forms",
    "check_grad_mode",
    "check_inputs",
    "check_kinds",
    "check_loss",
    "check_made",
    "check_modules",
    "check_nano_auxiliary",
    "check_operations",
    "check_scales",
    "check_trains",
    "check_transport",
    "facts_of",
    "one_per_stage",
]


def check_kinds(stages: object, schedule: object, timeout: object, mappings: Mapping[str, object]) -> None:
    """Raises PipelineError for arguments that are not what they have to be."""
    if not isinstance(schedule, Schedule):
        made = (
            "the spec's build()" if hasattr(schedule, "build") else 'ap.schedule("1f1b", ranks=..., microbatches=...)'
        )
        raise PipelineError(f"the schedule is a {type(schedule).__name__}: give a Schedule, such as {made}")
    if isinstance(stages, str) or not isinstance(stages, Iterable):
        raise PipelineError(f"stages is a {type(stages).__name__}: give a list of modules, such as ap.split makes")
    if not isinstance(timeout, timedelta):
        raise PipelineError(f"timeout={timeout!r}: give a datetime.timedelta, such as timedelta(seconds=60)")
    for name, value in mappings.items():
        if not isinstance(value, Mapping):
            raise PipelineError(f"{name} is a {type(value).__name__}: give a dictionary")


def check_trains(schedule: Schedule) -> None:
    """Raises PipelineError for a schedule without backwards."""
    if not any(part.kind in BACKWARDS for rank in schedule.ranks for a in rank for part in a.singles):
        raise PipelineError(
            "the schedule has no backward, so that step would compute no gradient: call eval, or take a schedule that "
            "trains"
        )


def check_made(stages: Sequence[nn.Module | None], schedule: Schedule, rank: int, size: int) -> None:
    """Raises PipelineError for stages, ranks and a schedule that do not fit together."""
    placement = schedule.placement
    if size != placement.ranks:
        started = int(os.environ.get("WORLD_SIZE", "1"))
        forgotten = started > 1 and not (dist.is_available() and dist.is_initialized())
        hint = (
            f": {started} processes were started, call torch.distributed.init_process_group first" if forgotten else ""
        )
        raise PipelineError(f"the schedule is for {placement.ranks} ranks and the group has {size}{hint}")
    if len(stages) != placement.stages:
        raise PipelineError(
            f"there are {len(stages)} stages and the schedule has {placement.stages}: give one module per stage, None "
            "where another rank holds it"
        )
    for index, module in enumerate(stages):
        held = placement.rank_of[index] == rank
        if held != isinstance(module, nn.Module):
            raise PipelineError(
                f"stage {index} belongs on rank {placement.rank_of[index]}, and this is rank {rank}: give "
                f"{'a module' if held else 'None'}, got {type(module).__name__}"
            )


def one_per_stage(stages: Sequence[nn.Module | None], placement: Placement, rank: int) -> Sequence[nn.Module | None]:
    """The modules of all copies of the model, where those of one copy were given: a copy's stages on both its ranks.

    Raises PipelineError for a module that no stage of this rank needs.
    """
    firsts = sorted(set(placement.weights_of))
    if len(stages) != len(firsts) or len(firsts) == placement.stages:
        return stages
    given = dict(zip(firsts, stages, strict=True))
    for first, module in given.items():
        places = [s for s in range(placement.stages) if placement.weights_of[s] == first]
        if module is not None and rank not in (placement.rank_of[place] for place in places):
            ranks = " and ".join(str(placement.rank_of[place]) for place in places)
            raise PipelineError(f"stage {first} belongs on ranks {ranks}, and this is rank {rank}: give None")
    return [given[first] if placement.rank_of[s] == rank else None for s, first in enumerate(placement.weights_of)]


def check_inputs(placement: Placement, count: int) -> None:
    """Raises PipelineError for positional inputs of which nobody knows the stage."""
    sources = [stage for stage in placement.sources if placement.copy_of[stage] == 0]
    if count and len(sources) > 1:
        raise PipelineError(
            f"several stages take the inputs of a step, {' and '.join(map(str, sources))}: give them by keyword, under "
            "the names that the forwards of these stages have for them"
        )


def check_transport(placement: Placement, group: dist.ProcessGroup | None) -> None:
    """Raises PipelineError for messages that the group's backend cannot tell apart."""
    if group is None or dist.get_backend(group) == "gloo":
        return
    for route in routes(placement):
        if not route.ordered:
            raise PipelineError(
                f"stage {route.source} hands on to stage {route.target} past others, so messages between ranks "
                f"{route.sender} and {route.receiver} have no fixed order, and {dist.get_backend(group)} has no tags "
                "to tell them apart: put the two stages on one rank, or let the stages between hand the values on"
            )


def check_loss(loss_fn: object, timeout: timedelta) -> None:
    """Raises PipelineError for what is no function, and for a timeout that is over before it begins."""
    if loss_fn is not None and not callable(loss_fn):
        raise PipelineError(f"loss_fn is called with output and target: give a function, got {type(loss_fn).__name__}")
    if timeout <= timedelta(0):
        raise PipelineError(f"timeout={timeout}: give the time that a rank may wait for another, more than none")


def check_nano_auxiliary(given: object) -> None:
    """Raises PipelineError for what does not say how auxiliary losses of nano-batches count."""
    if given not in (None, "mean", "sum"):
        raise PipelineError(f'nano_auxiliary={given!r}: give "mean", "sum" or None')


def check_forms(compiled: object, cuda_graphs: object, modules: Iterable[nn.Module]) -> None:
    """Raises PipelineError for what is no way to compile or to capture, and for captured stages that are on no GPU."""
    if compiled not in (None, "inductor"):
        raise PipelineError(
            f'compile={compiled!r}: give "inductor", which compiles what lies between communication, or None for '
            "graphs that run operation by operation"
        )
    if not isinstance(cuda_graphs, bool):
        raise PipelineError(f"cuda_graphs={cuda_graphs!r}: give True or False")
    tensors = (tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
    elsewhere = sorted({tensor.device.type for tensor in tensors} - {captured_device(), "meta"})
    if cuda_graphs and elsewhere:
        raise PipelineError(
            f"cuda_graphs=True, and this rank's stages have tensors on {' and '.join(elsewhere)}: move them to a GPU "
            "first, or leave cuda_graphs out"
        )


def facts_of(
    schedule: Schedule,
    policy: str | Policy,
    tied: Mapping[str, str],
    recompute: Sequence[RecomputeChoice],
    bucket_bytes: int | None,
    batch_dims: Mapping[str, int | None],
) -> dict[str, str]:
    """What has to be the same on every rank.

    Raises OrderError for a policy that there is not.
    """
    name, _ = find(policy)
    return {
        "the number of microbatches": str(schedule.microbatches),
        "the schedule": repr(schedule.programs.texts()),
        "the policy": policy if isinstance(policy, str) else getattr(policy, "__qualname__", name),
        "the tied parameters": repr(sorted(tied.items())),
        "what is computed again": "; ".join(map(str, recompute)),
        "bucket_bytes": str(bucket_bytes),
        "batch_dims": repr(sorted(batch_dims.items())),
    }


def check_grad_mode() -> None:
    """Raises PipelineError for a step that cannot differentiate anything."""
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        where = "torch.inference_mode" if torch.is_inference_mode_enabled() else "torch.no_grad"
        raise PipelineError(f"step differentiates, and is called inside {where}: call it outside, or call eval")


def check_scales(scales: Mapping[str, Any]) -> None:
    """Raises PipelineError for what no loss can be multiplied with."""
    for name, scale in scales.items():
        if isinstance(scale, torch.Tensor):
            wrong, given = scale.dim() or scale.is_complex(), f"a {scale.dtype} tensor of shape {tuple(scale.shape)}"
        else:
            wrong, given = isinstance(scale, bool) or not isinstance(scale, Real), repr(scale)
        if wrong:
            raise PipelineError(f"the scale of {name} is {given}: give a number, or a tensor without dimensions")


def check_modules(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises PipelineError for stages of a rank that have no memory, or have it in several places.

    Also for a parameter that ``ap.shard`` has shared in another module only: an optimizer would train both.

    Args:
        tensors: the parameters and buffers of all of them, by "stage.name".
    """
    first: dict[torch.device, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(tensor.device, name)
        if made_of(tensor) is not None:
            raise PipelineError(
                f"{name} is also the parameter of a module that ap.shard was called for, and is another tensor since: "
                "shard all modules that have it, or name it in ignore= wherever it is"
            )
    if torch.device("meta") in first:
        raise PipelineError(
            f"{first[torch.device('meta')]} is on the meta device and has no values: initialise the stages of this "
            "rank, for example with module.to_empty(device=...)"
        )
    if len(first) > 1:
        found = ", ".join(f"{name} on {device}" for device, name in first.items())
        raise PipelineError(f"the stages of this rank are on several devices ({found}): move all of them to one")


def check_operations(schedule: Schedule, rank: int, registered: AbstractSet[str]) -> None:
    """Raises PipelineError for an operation of the schedule that nobody has said what it does."""
    missing = sorted({action.kind for action in schedule.ranks[rank]} - BUILTIN_KINDS - registered)
    if missing:
        raise PipelineError(
            f"the schedule inserts {missing[0]}: say what it does with pipe.register({missing[0]!r}, fn)"
        )
