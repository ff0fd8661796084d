"""PyTorch's own pipeline schedules as texts, to compare ours with: what wraps private names of torch's pipelining.

Nothing runs and no process group is needed: the classes make their order from a stage that only has numbers. "Cells"
are what torch writes into a CSV file, with idle steps ("") and parameter actions; an "order" is the computation alone.

    torch_order("ScheduleZBVZeroBubble", ranks=2, chunks=2, microbatches=4)     F, B, I, W and combinations of each rank
    torch_lowered("ScheduleZBVZeroBubble", ranks=2, chunks=2, microbatches=4)   with messages and parameter actions
    torch_lowering([["0F0", "0B0"], ["1F0", "1B0"]])                            torch's passes over an order of ours
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules

__all__ = [
    "CLASSES",
    "SINGLE",
    "TORCH_DEFERS",
    "TORCH_WAITS",
    "classes_of_torch",
    "torch_cells",
    "torch_dump",
    "torch_load",
    "torch_lowered",
    "torch_lowering",
    "torch_lowering_with_waits",
    "torch_order",
    "torch_reads",
]

# Whether ranks wait for what they send where a schedule says so, as from PyTorch 2.15 on.
TORCH_WAITS = hasattr(schedules, "WAIT_SEND_F")
# Whether torch can put receives off; PyTorch 2.11 cannot.
TORCH_DEFERS = hasattr(schedules, "_defer_recv_ops")
# One stage a rank, then several; V-shaped ones need exactly two.
SINGLE = ("_ScheduleForwardOnly", "ScheduleGPipe", "Schedule1F1B")
CLASSES = (
    *SINGLE,
    "ScheduleLoopedBFS",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
)

Cells = list[list[str]]


def classes_of_torch() -> set[str]:
    """The schedule classes that this PyTorch has, without the bases of others."""
    found, open_classes = set(), [schedules._PipelineSchedule]
    while open_classes:
        one = open_classes.pop()
        below = [cls for cls in one.__subclasses__() if cls.__module__ == schedules.__name__]
        open_classes += below
        if not below:
            found.add(one.__name__)
    return found


def torch_cells(class_name: str, ranks: int, chunks: int, microbatches: int) -> Cells:
    """The order as torch has it, "" for an idle step; GPipe and 1F1B name REDUCE_GRAD too, and have no idle steps.

    Schedule1F1B counts the last rank's forwards from microbatch 1, and cannot run so: `torch_order` mends it.
    ValueError where torch refuses the numbers, and for _ScheduleForwardOnly, which has no order of its own.
    """
    made = _made(class_name, ranks, chunks, microbatches).pipeline_order
    if made is None:
        raise ValueError(f"{class_name} has no order: it only runs one")
    return [["" if action is None else str(action) for action in made[rank]] for rank in range(ranks)]


def torch_order(class_name: str, ranks: int, chunks: int, microbatches: int) -> Cells:
    """The computation of each rank as the class runs it: F, B, I, W and combinations.

    ValueError where torch refuses the numbers.
    """
    if class_name == "_ScheduleForwardOnly":
        return [[f"{rank}F{microbatch}" for microbatch in range(microbatches)] for rank in range(ranks)]
    cells = torch_cells(class_name, ranks, chunks, microbatches)
    order = [[cell for cell in row if cell and not cell.endswith("REDUCE_GRAD")] for row in cells]
    if class_name == "Schedule1F1B":
        forwards = {f"{ranks - 1}F{microbatch + 1}": f"{ranks - 1}F{microbatch}" for microbatch in range(microbatches)}
        order[-1] = [forwards.get(cell, cell) for cell in order[-1]]
    return order


def torch_lowered(
    class_name: str, ranks: int, chunks: int, microbatches: int, *, defer_receives: bool = False
) -> Cells:
    """The same with UNSHARD, RESHARD, REDUCE_GRAD, sends and receives, by torch's own passes.

    `defer_receives` posts each receive as late as torch's `defer_pp_recv` allows.
    """
    order = torch_order(class_name, ranks, chunks, microbatches)
    return torch_lowering(order, defer_receives=defer_receives)


def torch_lowering(order: Sequence[Sequence[str]], *, defer_receives: bool = False) -> Cells:
    """Torch's passes over an order; stages and microbatches are those that it names.

    AssertionError where torch finds the order incomplete or cannot go on; torch lowers no forward-only order.
    """
    return [
        [cell for cell in row if "WAIT_" not in cell]
        for row in torch_lowering_with_waits(order, defer_receives=defer_receives)
    ]


def torch_lowering_with_waits(order: Sequence[Sequence[str]], *, defer_receives: bool = False) -> Cells:
    """The same, from PyTorch 2.15 on with what its ranks wait for."""
    runtime = _lowered(_parsed(order), defer_receives)
    return [[str(action) for action in runtime.pipeline_order_with_comms[rank]] for rank in range(len(order))]


def torch_dump(
    path: Path, class_name: str, ranks: int, chunks: int, microbatches: int, *, communication: bool = False
) -> None:
    """Write the file with torch's `_dump_csv`.

    The classes with one stage a rank cannot write one; torch's runtime writes their order.
    """
    made = _made(class_name, ranks, chunks, microbatches)
    if class_name in SINGLE and communication:
        made = _lowered(_parsed(torch_order(class_name, ranks, chunks, microbatches)))
    elif class_name in SINGLE:
        made = _runtime(made.pipeline_order)
    made._dump_csv(str(path), format="compute_comms" if communication else "compute_only")


def torch_load(path: Path, ranks: int, chunks: int, microbatches: int, *, communication: bool = False) -> Cells:
    """Read a file with torch's `_load_csv`, which checks that every stage computes every microbatch; without waits."""
    runtime = schedules._PipelineScheduleRuntime(_stages(ranks, chunks), microbatches, loss_fn=_loss)
    runtime._load_csv(str(path), format="compute_comms" if communication else "compute_only")
    loaded = runtime.pipeline_order_with_comms if communication else runtime.pipeline_order
    cells = [["" if action is None else str(action) for action in loaded[rank]] for rank in range(ranks)]
    return [[cell for cell in row if "WAIT_" not in cell] for row in cells]


def torch_reads(cell: str) -> str:
    """What torch makes of one cell, written by torch; "" is an idle step."""
    action = schedules._Action.from_str(cell)
    return "" if action is None else str(action)


def _made(class_name: str, ranks: int, chunks: int, microbatches: int):
    stages = _stages(ranks, chunks)
    given = stages[0] if class_name in SINGLE else stages
    return getattr(schedules, class_name)(given, microbatches, loss_fn=_loss)


def _parsed(rows: Sequence[Sequence[str]]) -> dict:
    return {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}


def _runtime(actions: dict, defer_receives: bool = False):
    """A runtime for the stages and microbatches that actions name."""
    singles = [
        single for row in actions.values() for action in row if action for single in action.sub_actions or [action]
    ]
    stages = 1 + max(single.stage_index for single in singles)
    microbatches = 1 + max(single.microbatch_index or 0 for single in singles)
    stub = _stages(len(actions), 1, stages=stages)
    options: dict[str, Any] = {"defer_pp_recv": True} if defer_receives else {}
    runtime = schedules._PipelineScheduleRuntime(stub, microbatches, loss_fn=_loss, **options)
    runtime.pipeline_order = actions
    return runtime


def _lowered(actions: dict, defer_receives: bool = False):
    runtime = _runtime(actions, defer_receives)
    runtime._prepare_schedule_with_comms(actions)
    return runtime


def _stages(ranks: int, chunks: int, stages: int | None = None) -> list:
    total = ranks * chunks if stages is None else stages
    # As many of them as torch holds on one rank; it asks for no other attribute before a step.
    return [SimpleNamespace(submod=None, num_stages=total, group_size=ranks, group_rank=0)] * chunks


def _loss(output, target):
    return output
