"""Start the process group that a case of the overlap job asks for."""

import os

import torch
import torch.distributed as dist

from benchmarks.groups import emulated, pinned
from benchmarks.pair.case import Case

__all__ = ["start_network"]


def start_network(case: Case) -> torch.device:
    """Initialise the process group that the case asks for; returns the device to compute on."""
    if case.network == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    if case.network == "emulated":
        emulated.register()
        link = emulated.Link(case.rate_bytes_per_s)
        dist.init_process_group("emulated", pg_options=link)
        return torch.device("cpu")
    if case.network == "pinned":
        pinned.register()
        dist.init_process_group("pinned", store=dist.HashStore(), rank=0, world_size=1)
        return torch.device("cuda")
    dist.init_process_group("gloo")
    return torch.device("cpu")
