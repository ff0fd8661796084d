"""Paced runs take the time that their program says, and pacing scales computation to the communication."""

import time

import pytest
import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.simulation import Task
from benchmarks.pair.paced import paced_costs, run_paced


def test_computation_is_scaled_to_the_ratio_of_communication() -> None:
    costs = ap.NodeCosts({"a": 1.0, "b": 3.0, "l": 2.0}, {"l": 0.1}, {"l": 0.5})
    paced = paced_costs(costs, 0.5)
    assert paced.seconds == {"a": 0.3125, "b": 0.9375, "l": 2.5}, "the launch's own time is part of the transfer"
    assert paced.issue == {"l": 0.0}


def test_computation_is_waited_for_and_overlaps_a_transfer() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        rows = torch.arange(4.0)
        group = dist.group.WORLD
        assert group is not None
        name = group.group_name
        call = ap.costs.LaunchCall(torch.ops._c10d_functional.all_to_all_single, (rows, [4], [4], name), {}, name)
        program = [
            Task("l", "launch", 0.001, queue=name),
            Task("a", "compute", 0.02),
            Task("w", "wait", launch=0),
            Task("b", "host", 0.01),
        ]
        started = time.perf_counter()
        seconds = run_paced(program, {"l": call})
        assert 0.03 <= seconds <= time.perf_counter() - started
    finally:
        dist.destroy_process_group()


def test_a_program_of_computation_alone_takes_its_sum() -> None:
    assert run_paced([Task("a", "compute", 0.005)] * 3, {}) >= 0.0149


def test_a_graph_without_communication_has_nothing_to_be_paced_against() -> None:
    with pytest.raises(ap.CostError, match="nothing to pace computation against"):
        paced_costs(ap.NodeCosts({"a": 1.0}), 1.0)
