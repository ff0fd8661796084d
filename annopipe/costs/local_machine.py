"""The machine that this process runs on: the GPU's entry of the table, or the processor, measured once.

Measuring takes a fraction of a second (device_timing.py), on as many threads as PyTorch uses. What is measured is
attained, so the fractions are 1. Ranks of one job measure different numbers: ``group`` gives all of them the first
one's. The links are typical values: ``ap.costs.calibrate`` measures them.
"""

import dataclasses
import functools

import torch
import torch.distributed as dist

from annopipe.costs.device_timing import attained
from annopipe.costs.hardware import Hardware, Link
from annopipe.costs.machines import MACHINES, machine_of
from annopipe.errors import CostError

__all__ = ["local_hardware", "measured_cpu"]

# gloo over loopback TCP, in one direction: one core copies in and out of the kernel. Not measured: that takes a group.
_LOOPBACK = Link(1.5e9, fraction=1.0, hop_s=30e-6)
_LOOPBACK_SOURCE = "gloo over loopback TCP, a typical value: annopipe calibrate measures yours"


def local_hardware(group: dist.ProcessGroup | None = None, *, cpu: bool = False) -> Hardware:
    """The GPU's entry of the table by its name, else the processor's measured numbers.

    Args:
        group: ranks that all get the machine of the first of them; all of them call this.
        cpu: the processor even where there is a GPU.

    Raises:
        CostError: there is a GPU that the table does not have.
    """
    own = measured_cpu() if cpu else _local_machine()
    if group is None:
        return own
    found: list[object] = [own]
    dist.broadcast_object_list(found, group=group, group_src=0)
    return found[0]  # type: ignore[return-value]


def _local_machine() -> Hardware:
    if not torch.cuda.is_available():
        return measured_cpu()
    name = torch.cuda.get_device_name()
    entry = machine_of(name)
    if entry is None:
        raise CostError(
            f"the table of hardware has no {name!r}, only {', '.join(MACHINES)}: pass one of these names, or "
            "ap.costs.Hardware(...) with its numbers"
        )
    return entry


@functools.cache
def measured_cpu() -> Hardware:
    """This process's processor, measured at the first call."""
    found = attained(torch.device("cpu"))
    return Hardware(
        name="cpu",
        **dataclasses.asdict(found),
        inside=_LOOPBACK,
        ranks_per_node=1,
        matmul_fraction=1.0,
        attention_fraction=1.0,
        memory_fraction=1.0,
        collective_start_s=50e-6,
        collective_issue_s=30e-6,
        sources={
            **dict.fromkeys(("peak_flops", "memory_bandwidth", "kernel_launch_s", "host_read_s"), "measured here"),
            **dict.fromkeys(("inside", "collective_start_s", "collective_issue_s"), _LOOPBACK_SOURCE),
        },
    )
