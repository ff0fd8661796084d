"""One rank that measures, before anything is searched for: ``python -m benchmarks.calibration.measuring CASE_JSON``.

The machine is calibrated with each expert group as a node: that is how the ranks share their media. Then the first, a
middle and the last block are measured on their own; the others are like the middle one.
"""

import sys
import time

import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.errors import AnnopipeError
from benchmarks.alternation import raise_priority, raise_to_real_time
from benchmarks.calibration.plan import Measured
from benchmarks.launch import end_rank
from benchmarks.moe.case import MoeCase
from benchmarks.moe.groups import start_groups
from benchmarks.moe.model import STRETCHES, TRANSFERS, blocks_module, example_input, mean_square
from benchmarks.progress import tell, tell_result

__all__ = ["main"]


def main() -> None:
    """Measure for the case that the command line gives."""
    case = MoeCase.from_json(sys.argv[1])
    torch.set_num_threads(1)
    raise_priority(20)
    groups = start_groups(case)
    try:
        found = _measured(case, groups.experts)
    except AnnopipeError as error:  # the parent shows the message, not where it was raised
        sys.exit(f"{type(error).__name__}: {error}")
    tell_result(found.to_json())
    dist.barrier()
    end_rank()


def _measured(case: MoeCase, experts: dist.ProcessGroup) -> Measured:
    began = time.perf_counter()
    machine = ap.costs.calibrate(ranks_per_node=case.expert_ranks, report=lambda text: tell(f"calibrating: {text}"))
    raise_to_real_time()  # from here on this rank waits, for the most part, as the ranks do that will run
    exchange = machine.of("all_to_all", "inside")
    asked_s = case.ratio * exchange.line.seconds(case.transfer_bytes) * TRANSFERS / STRETCHES
    own = [0, *range(1, case.blocks - 1)[:1], case.blocks - 1]
    blocks = [blocks_module(case, range(index, index + 1), asked_s, experts) for index in own]
    first, *middle, last = ap.costs.measure_layers(
        blocks,
        example_input(case),
        loss_fn=mean_square,
        target=example_input(case),
        group=experts,
        report=lambda text: tell(f"measuring {text}"),
    )
    times = (first, *middle * (case.blocks - 2), last)
    layers = tuple(
        ap.Layer(each.F, each.I, each.W, float(each.activation), each.comm, float(each.parameters)) for each in times
    )
    return Measured(
        exchange=exchange.line,
        issue_s=exchange.issue_s,
        in_flight=machine.hardware.in_flight,
        send=machine.of("send", "between").line,
        stretch_s=asked_s,
        layers=layers,
        seconds=time.perf_counter() - began,
    )


if __name__ == "__main__":
    main()
