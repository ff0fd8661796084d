"""``ap.costs.calibrate``: measure the machine that a job's ranks are on.

    found = ap.costs.calibrate()          # under torchrun, on all ranks, after init_process_group

Measured are the device (device_timing.py), messages between two ranks and collectives, inside a node and between nodes
(message_timing.py), and what computation loses while messages move (interference.py). Links of all ranks work at the
same time, as they do in a step.
"""

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from annopipe.costs.calibration import Calibration, described
from annopipe.costs.device_timing import Attained, attained
from annopipe.costs.interference import measure_interference
from annopipe.costs.message_timing import LARGEST_BYTES, MessageTimes, Meter, Route
from annopipe.errors import CostError
from annopipe.graphs.process_groups import is_distributed
from annopipe.processors import processors

__all__ = ["calibrate", "ranks_on_each"]

Report = Callable[[str], None]


def calibrate(
    group: dist.ProcessGroup | None = None,
    *,
    device: torch.device | str = "cpu",
    ranks_per_node: int | None = None,
    name: str | None = None,
    largest_bytes: int = LARGEST_BYTES,
    report: Report | None = None,
) -> Calibration:
    """Measure the machine that the ranks of a group are on; less than a minute, the same result on all ranks.

    Args:
        group: all its ranks call this at the same time; the default group when left out.
        device: where messages lie and computation runs: "cpu" for gloo, "cuda" for NCCL.
        ranks_per_node: neighbouring ranks that share a node; by the names of their hosts when left out.
        name: of the hardware; "cpu", or the GPU's own, when left out.
        largest_bytes: of a message that is tried; sizes end earlier where a message takes 40 ms.
        report: called with what is measured next.

    Raises CostError: torch.distributed is not initialised, there is one rank only, the nodes have different numbers of
    ranks, or the times do not tell a bandwidth.
    """
    if not is_distributed():
        raise CostError(
            "calibrate needs torch.distributed: call init_process_group on all ranks, or annopipe calibrate"
        )
    everyone = dist.group.WORLD if group is None else group
    if everyone is None or dist.get_world_size(everyone) < 2:
        raise CostError("calibrate on one rank: links are measured between 2 ranks or more; start more of them")
    began, tell, place = time.perf_counter(), report or _silent, torch.device(device)
    ranks = dist.get_world_size(everyone)
    hosts = _hosts(everyone)
    per_node = _ranks_per_node(hosts, ranks_per_node)
    meter = Meter(everyone, place, largest_bytes=largest_bytes)
    tell("the device")
    own, memory, cores = _devices(everyone, place, hosts.count(socket.gethostname()))
    messages: list[MessageTimes] = []
    in_flight = 1
    with _node_group(everyone, ranks, per_node) as inside:
        for route in _routes(everyone, inside, ranks, per_node):
            tell(f"{route.kind} {route.where} {'a node' if route.where == 'inside' else 'nodes'}")
            messages.append(meter.measured(route))
            if route.kind == "all_to_all" and len(messages) == 2:
                tell("transfers that move at a time")
                in_flight = meter.in_flight(route, max(messages[-1].seconds))
        tell("interference of communication and computation")
        interference = measure_interference(inside or everyone, repeat=3, device=place)
    default = "cpu" if place.type == "cpu" else torch.cuda.get_device_name(place)
    hardware = described(name or default, own, messages, per_node, interference, in_flight)
    backend = dist.get_backend(everyone)
    found = Calibration(
        hardware,
        ranks,
        memory,
        tuple(messages),
        interference,
        backend,
        cores,
        max(map(hosts.count, hosts)),
        time.perf_counter() - began,
    )
    of_first: list[Any] = [found]
    dist.broadcast_object_list(of_first, group=everyone, group_src=0)
    agreed: Calibration = of_first[0]
    return agreed


def _silent(_: str) -> None:
    pass


def _hosts(group: dist.ProcessGroup) -> list[str]:
    """The name of every rank's host."""
    hosts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    return hosts


def _ranks_per_node(hosts: Sequence[str], given: int | None) -> int:
    if given is None:
        return ranks_on_each(hosts)
    ranks = len(hosts)
    if type(given) is not int or given < 1 or ranks % min(given, ranks):
        raise CostError(f"ranks_per_node={given!r}: give a number that divides the {ranks} ranks into equal nodes")
    return min(given, ranks)


def ranks_on_each(hosts: Sequence[str]) -> int:
    """How many ranks there are on each host, from the name of every rank's.

    Raises CostError where hosts have different numbers, or ranks of one host are not neighbours.

    >>> ranks_on_each(["a", "a", "b", "b"])
    2
    """
    each = hosts.count(hosts[0])
    runs = [set(hosts[start : start + each]) for start in range(0, len(hosts), each)]
    if any(hosts.count(host) != each for host in hosts) or any(len(run) != 1 for run in runs):
        counts = ", ".join(f"{host}: {hosts.count(host)}" for host in dict.fromkeys(hosts))
        raise CostError(
            f"the hosts have different numbers of ranks, or not neighbouring ones ({counts}): start as many on each, "
            "as torchrun does, or give ranks_per_node"
        )
    return each


@contextmanager
def _node_group(everyone: dist.ProcessGroup, ranks: int, per_node: int) -> Iterator[dist.ProcessGroup | None]:
    """The ranks of this rank's node, for a while; None where each is alone."""
    if per_node in (1, ranks):
        yield everyone if per_node > 1 else None
        return
    first = dist.get_rank(everyone) // per_node * per_node
    members = [dist.get_global_rank(everyone, rank) for rank in range(first, first + per_node)]
    made = dist.new_group(members, use_local_synchronization=True)
    try:
        yield made
    finally:
        dist.destroy_process_group(made)


def _routes(
    everyone: dist.ProcessGroup, inside: dist.ProcessGroup | None, ranks: int, per_node: int
) -> Iterator[Route]:
    rank = dist.get_rank(everyone)
    if inside is not None:
        local = rank % per_node
        yield Route("send", "inside", inside, per_node, peer=_partner(local, 1, per_node))
        share = (per_node - 1) / per_node
        yield Route("all_to_all", "inside", inside, per_node, share)
        yield Route("all_gather", "inside", inside, per_node, share)
    if per_node < ranks:
        yield Route("send", "between", everyone, ranks, peer=_partner(rank, per_node, ranks))
        yield Route("all_to_all", "between", everyone, ranks, (ranks - per_node) / ranks)
        yield Route("all_gather", "between", everyone, ranks, (ranks - 1) / ranks)


def _partner(rank: int, apart: int, ranks: int) -> int | None:
    """The other one of a pair of ranks so far apart; None for one that is left over.

    >>> [_partner(rank, 2, 4) for rank in range(4)], [_partner(rank, 1, 3) for rank in range(3)]
    ([2, 3, 0, 1], [1, 0, None])
    """
    other = rank + apart if rank // apart % 2 == 0 else rank - apart
    return other if other < ranks else None


def _devices(group: dist.ProcessGroup, device: torch.device, sharing: int) -> tuple[Attained, int, int]:
    """What a rank's device attains while all measure: the median; its memory, the least; cores, where those compute.

    sharing: how many ranks this host has, whatever a node is said to be.
    """
    if device.type == "cuda":
        memory, cores = torch.cuda.get_device_properties(device).total_memory, 0
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // sharing
        cores = processors()
    dist.barrier(group)
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (attained(device), memory, cores), group=group)
    all_attained: list[Attained] = [each[0] for each in everyone]

    def median(field: str) -> float:
        return statistics.median(getattr(each, field) for each in all_attained)

    peaks = {
        dtype: statistics.median(each.peak_flops[dtype] for each in all_attained)
        for dtype in all_attained[0].peak_flops
    }
    numbers = Attained(peaks, median("memory_bandwidth"), median("kernel_launch_s"), median("host_read_s"))
    return numbers, min(each[1] for each in everyone), min(each[2] for each in everyone)
