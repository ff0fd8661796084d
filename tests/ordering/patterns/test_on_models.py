"""Patterns and the registered orders on the graphs of a real model."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

import annopipe as ap
from annopipe.models import tiny_stage
from annopipe.ordering.builtin_policies import DUALPIPE, MEGATRON


@pytest.fixture(name="both", scope="module")
def _both() -> Iterator[ap.StageGraph]:
    """A backward and a forward of two blocks with experts, exchanged in a group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    module, args = tiny_stage()
    graphs = ap.trace(module, args)
    assert graphs.backward is not None
    yield ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))
    dist.destroy_process_group()


def _without_mlp(text: str) -> str:
    """The pattern without the pieces of dense blocks, which this model lacks."""
    steps = [[piece.strip() for piece in step.split("|") if "mlp" not in piece] for step in text.split(";")]
    return " ; ".join(" | ".join(step) for step in steps)


@pytest.mark.parametrize(("name", "text"), [("dualpipe", DUALPIPE), ("megatron", MEGATRON)])
def test_the_published_patterns_reproduce_the_registered_policies(both: ap.StageGraph, name: str, text: str) -> None:
    assert ap.overlap(both, policy=_without_mlp(text)).order == ap.overlap(both, policy=name).order


def test_the_launches_of_a_model_come_in_the_published_sequence(both: ap.StageGraph) -> None:
    problem = ap.overlap(both, policy="dualpipe").problem
    plan = ap.overlap(both, policy="dualpipe")
    launches = [problem.nodes[index] for index in plan.indices if problem.nodes[index].kind == "launch"]
    exchanges = [f"{n.lane}.{n.region}" for n in launches if "exchange" in n.name]
    assert exchanges == [
        f"{lane}.block{block if lane == 'F' else 1 - block}/moe/{region}"
        for block in range(2)
        for lane, region in (("B", "combine"), ("F", "dispatch"), ("B", "dispatch"), ("F", "combine"))
    ]
