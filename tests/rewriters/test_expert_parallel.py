"""The run-time hook puts the exchanges of a dispatcher into regions inside of that of the experts, and is undone."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn

import annopipe as ap
from rewriters.expert_parallel import tag_expert_parallel


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class AllToAllEP:
    """The protocol of transformers.distributed.expert_parallel.AllToAllEP."""

    def __init__(self, experts: nn.Module) -> None:
        self.experts_forward = experts.forward

    def __call__(self, x: Tensor) -> Tensor:
        return self._combine_tokens(self.experts_forward(self._dispatch_tokens(x)))

    def _dispatch_tokens(self, x: Tensor) -> Tensor:
        return fc.all_to_all_single_autograd(x, None, None, dist.group.WORLD)

    def _combine_tokens(self, x: Tensor) -> Tensor:
        return fc.all_to_all_single_autograd(x, None, None, dist.group.WORLD)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Sequential(nn.Linear(4, 4), nn.SiLU())
        self.dispatcher = AllToAllEP(self.experts)

    def forward(self, x: Tensor) -> Tensor:
        with ap.region("experts"):
            return self.dispatcher(x)


def regions() -> list[tuple[str, str]]:
    graphs = ap.trace(Block(), (torch.randn(3, 4, requires_grad=True),))
    rows = ap.region_table(graphs.forward)
    return [(row.kind, row.region) for row in rows if row.kind == "launch" or "silu" in row.node.name]


def test_the_exchanges_have_regions_until_the_hook_is_undone() -> None:
    original = AllToAllEP._dispatch_tokens
    undo = tag_expert_parallel(AllToAllEP)
    tag_expert_parallel(AllToAllEP)  # twice is once
    tagged = [("launch", "experts/dispatch"), ("compute", "experts"), ("launch", "experts/combine")]
    assert regions() == tagged
    undo()
    undo()
    assert AllToAllEP._dispatch_tokens is original
    assert {region for _, region in regions()} == {"experts"}


def test_an_inherited_method_is_tagged_in_the_class_that_is_named() -> None:
    class Own(AllToAllEP):
        pass

    undo = tag_expert_parallel(Own, {"_dispatch_tokens": "dispatch"})
    assert "_dispatch_tokens" in vars(Own)
    undo()
    assert "_dispatch_tokens" not in vars(Own)


def test_a_class_without_the_methods_is_refused() -> None:
    from annopipe.errors import RewriteError

    with pytest.raises(RewriteError, match="int has no _dispatch_tokens and no _combine_tokens: name its methods"):
        tag_expert_parallel(int)
