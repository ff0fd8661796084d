"""What a checkpoint covers is computed again instead of saved; what must happen once happens once."""

import dataclasses
import functools
import textwrap
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import annopipe as ap
from annopipe.graphs.source_guards import SourceGuards
from benchmarks.launch import run_ranks
from tests.graphs.helpers import check_against_eager, saved_bytes
from tests.graphs.modules import Function, leaf

aten = torch.ops.aten


class Block(nn.Module):
    """A feed-forward layer, checkpointed with ``options`` or not at all."""

    def __init__(self, options: dict[str, Any] | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(8, 64), nn.Linear(64, 8), nn.Dropout(dropout)
        self.options = options

    def inner(self, x: Tensor) -> Tensor:
        with ap.region("mlp"):
            return x + self.dropout(self.down(F.gelu(self.up(x)).sin()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if self.options is None else checkpoint(self.inner, x, **self.options)


def blocks(options: dict[str, Any] | None, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(options, dropout) for _ in range(3)))


def targets(graph: Any, phase: str = "recompute") -> set[Any]:
    return {row.node.target for row in ap.region_table(graph) if row.phase == phase}


def traced(module: nn.Module, *args: Any) -> Any:
    """Traced and compared with eager: outputs, gradients (whole and in halves), buffers, random state."""
    directly, strictly = (ap.trace(module, args, strict=strict) for strict in (False, True))
    assert saved_bytes(directly) == saved_bytes(strictly)
    assert targets(directly.backward) == targets(strictly.backward) if directly.backward is not None else True
    check_against_eager(module, args, graphs=directly)
    return check_against_eager(module, args, graphs=strictly)


PLAIN = {"use_reentrant": False}


def test_what_a_checkpoint_covers_is_not_saved_and_is_computed_again_in_its_region() -> None:
    everything, found = traced(blocks(None), leaf(4, 8)), traced(blocks(PLAIN), leaf(4, 8))
    assert saved_bytes(found) == 3 * 4 * 8 * 4  # the input of each block
    assert saved_bytes(everything) > 20 * saved_bytes(found)
    again = [row for row in ap.region_table(found.backward) if row.phase == "recompute"]
    assert {row.node.target for row in again} == {aten.addmm.default, aten.gelu.default, aten.sin.default}
    assert {row.region for row in again} == {"mlp"}
    assert not targets(everything.backward)


def test_each_block_is_computed_again_just_before_its_backward() -> None:
    found = ap.trace(blocks(PLAIN), (leaf(4, 8),), strict=True)
    order = [row.node.target for row in ap.region_table(found.backward)]
    again = [index for index, target in enumerate(order) if target is aten.gelu.default]
    used = [index for index, target in enumerate(order) if target is aten.gelu_backward.default]
    assert len(again) == len(used) == 3
    assert [a < b for a, b in zip(used, again[1:], strict=False)] == [True, True]


def test_dropout_is_drawn_once_and_is_the_same() -> None:
    found = traced(blocks(PLAIN, dropout=0.3), leaf(4, 8))
    assert aten.bernoulli.p not in targets(found.backward)


def test_recomputation_is_divided_between_the_halves_of_the_backward() -> None:
    found = traced(blocks(PLAIN), leaf(4, 8))
    names = [
        {r.node.name for r in ap.region_table(g) if r.phase == "recompute"}
        for g in (found.backward_input, found.backward_weight)
    ]
    assert names[0]
    assert not names[0] & names[1]


def keep_products(_: Any, op: Any, *_args: Any, **_named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


def selective() -> Any:
    return create_selective_checkpoint_contexts(keep_products)


@pytest.mark.parametrize(
    "context_fn",
    [selective, functools.partial(create_selective_checkpoint_contexts, [aten.addmm.default])],
    ids=["policy", "list"],
)
def test_a_policy_says_what_is_saved(context_fn: Any) -> None:
    found = traced(blocks({**PLAIN, "context_fn": context_fn}, dropout=0.2), leaf(4, 8))
    assert aten.addmm.default not in targets(found.backward)
    assert aten.gelu.default in targets(found.backward)
    kept = {p.source for p in found.forward.outputs if p.role == "saved"}
    assert any(name.startswith("addmm") for name in kept)


def test_nested_checkpoints_save_what_the_outer_one_saves() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = blocks(PLAIN)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    found = traced(Outer(), leaf(4, 8))
    assert saved_bytes(found) == 4 * 8 * 4


def route(self: Any, x: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        order = chosen.flatten().argsort(stable=True)
        counts = F.one_hot(chosen.flatten(), 4).sum(0).tolist()
        rows = x[order // 2]
        out = torch.cat([torch.tanh(part @ self.w[e]) for e, part in enumerate(rows.split(counts))])
        chosen_rows = out[out.sum(1) > 0]
        return torch.zeros_like(x).index_add(0, order // 2, out * weights.flatten()[order][:, None]) + chosen_rows.sum()

    return checkpoint(inner, x, use_reentrant=False)


def test_sorting_and_host_reads_inside_happen_once() -> None:
    module = Function(route, gate=nn.Linear(6, 4), w=nn.Parameter(torch.randn(4, 6, 6)))
    graphs = ap.trace(module, (leaf(5, 6),), strict=True)
    for scale in (0.0, 1.0, 50.0):
        check_against_eager(module, (leaf(5, 6).detach().mul(scale).requires_grad_(),), graphs=graphs)
    again = targets(graphs.backward)
    assert aten.tanh.default in again
    assert not again & {aten.topk.default, aten.sort.stable, aten.nonzero.default, aten._local_scalar_dense.default}
    assert not [row for row in ap.region_table(graphs.backward) if row.kind == "host"]
    assert aten.index.Tensor in again  # by numbers, but not by the mask, whose result has a size of its own
    assert sum(r.node.target is aten.index.Tensor for r in ap.region_table(graphs.forward)) >= 2


def test_an_autograd_function_inside_is_computed_again() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x * x * gradients[0]

    module = Function(
        lambda s, x: checkpoint(lambda y: Cube.apply(s.a(y)).sin(), x, use_reentrant=False), a=nn.Linear(3, 3)
    )
    found = traced(module, leaf(2, 3))
    assert [p.name for p in found.forward.outputs if p.role == "saved"] == ["saved.input.x"]


def test_a_buffer_is_updated_once_and_the_recomputation_reads_its_old_value() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.tanh(self.a(x) * self.n.exp()).sin()

        y = checkpoint(inner, x, use_reentrant=False)
        with torch.no_grad():
            self.n.add_(1)
        return y

    def as_eager_without_checkpoint(self: Any, x: Tensor) -> Tensor:
        y = torch.tanh(self.a(x) * self.n.exp()).sin()
        with torch.no_grad():
            self.n.add_(1)
        return y

    module, reference = (Function(f, a=nn.Linear(3, 3)) for f in (forward, as_eager_without_checkpoint))
    reference.a.load_state_dict(module.a.state_dict())
    for one in (module, reference):
        one.register_buffer("n", torch.ones(3))
    x = leaf(2, 3)
    graphs = dataclasses.replace(ap.trace(module, (x,), strict=True), sources=SourceGuards())  # for another forward
    check_against_eager(reference, (x,), graphs=graphs)


@pytest.mark.slow
def test_launches_inside_are_issued_once_on_real_ranks(tmp_path: Any) -> None:
    program = tmp_path / "recomputation_program.py"
    program.write_text(
        textwrap.dedent(
            """
            import torch, torch.distributed as dist, annopipe as ap
            from torch import nn
            from torch.utils.checkpoint import checkpoint
            from annopipe.models import DeepSeekV3Config, PlainMoE
            from annopipe.models.moe import MoE
            from benchmarks.launch import end_rank
            from tests.graphs.helpers import check_against_eager, saved_bytes
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
            rank = dist.get_rank()
            class Stage(nn.Module):
                def __init__(self, moe, covered):
                    super().__init__()
                    torch.manual_seed(rank)
                    self.norm, self.covered = nn.LayerNorm(32), covered
                    self.moe = moe(DeepSeekV3Config.tiny(), group=dist.group.WORLD)
                    for p in self.parameters():
                        nn.init.normal_(p, std=0.3)
                def inner(self, x):
                    return x + self.moe(self.norm(x).sin())
                def forward(self, x):
                    return checkpoint(self.inner, x, use_reentrant=False) if self.covered else self.inner(x)
            def count(graph, kind):
                return sum(row.kind == kind for row in ap.region_table(graph))
            for moe in (MoE, PlainMoE):
                torch.manual_seed(5 + rank)
                x = torch.randn(2, 5, 32).requires_grad_()
                found = []
                for covered, strict in ((False, False), (True, moe is MoE)):
                    stage = Stage(moe, covered)
                    graphs = ap.trace(stage, (x,), strict=strict)
                    for scale in (1.0, 0.0) if covered else ():
                        check_against_eager(stage, (x.detach().mul(scale).requires_grad_(),), graphs=graphs, idle=True)
                    saved = [p for p in graphs.forward.outputs if p.role == "saved"]
                    found.append((count(graphs.backward, "launch"), count(graphs.backward, "host"), len(saved)))
                    assert covered == any(r.phase == "recompute" for r in ap.region_table(graphs.backward))
                (launches, reads, saved), (again, reads_again, fewer) = found
                assert launches == again > 0 and reads == reads_again == 0 and fewer < saved, found
            dist.barrier(); print("done"); end_rank()
            """
        )
    )
    outputs = run_ranks("recomputation_program", 2, env={"PYTHONPATH": f"{tmp_path}:."}, timeout_s=400)
    assert [output.splitlines()[-1] for output in outputs] == ["done", "done"]
