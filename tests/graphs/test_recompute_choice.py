"""What the caller chooses is computed again: by region, all, or within a budget; values are eager's bit by bit."""

import textwrap
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import annopipe as ap
from annopipe.errors import CaptureError, GraphError
from annopipe.graphs.recompute_choice import recompute_choice
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from annopipe.models.gpt import GPTConfig, GPTStage
from benchmarks.launch import run_ranks
from tests.graphs.helpers import check_against_eager, saved_bytes
from tests.graphs.modules import Function, leaf
from tests.graphs.test_recomputation import PLAIN, blocks, targets

aten = torch.ops.aten


def regions_again(graphs: Any) -> set[str]:
    return {row.region for row in ap.region_table(graphs.backward) if row.phase == "recompute"}


def entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def gpt() -> nn.Module:
    return GPTStage(GPTConfig.tiny(), embed=True, head=True)


def deepseek() -> nn.Module:
    return DeepSeekV3Stage(DeepSeekV3Config.tiny(), embed=True, head=True)


@pytest.mark.parametrize(
    ("build", "forms"),
    [(gpt, [None, "attention", "block1/mlp", "all", 0.3, 0]), (deepseek, [None, "attention", ["attention", "moe"], 0])],
    ids=["gpt", "deepseek"],
)
def test_each_form_is_eager_bit_by_bit_and_saves_less(build: Any, forms: list[Any]) -> None:
    torch.manual_seed(0)
    module, tokens = build(), torch.randint(32, (2, 6))
    sizes = []
    for form in forms:
        graphs = ap.trace(module, (tokens,), None, entropy, tokens, recompute=form)
        check_against_eager(module, (tokens,), graphs=graphs, loss_fn=entropy, target=tokens, idle=True)
        sizes.append(saved_bytes(graphs))
        assert bool(regions_again(graphs)) == (form is not None)
        if isinstance(form, str) and form != "all":
            assert all(f"/{form}/" in f"/{region}/" for region in regions_again(graphs))
    assert max(sizes[1:]) < sizes[0]
    assert sizes[-1] == min(sizes)


def test_attention_without_dropout_is_run_again_and_with_dropout_is_not() -> None:
    def attention(self: Any, x: Tensor) -> Any:
        with ap.region("attention"):
            q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)

    for p in (0.0, 0.5):
        module = Function(attention, qkv=nn.Linear(8, 24))
        setattr(module, "p", p)  # noqa: B010 - of a module it would be a tensor
        x = leaf(2, 5, 8)
        graphs = check_against_eager(module, (x,), graphs=ap.trace(module, (x,), recompute="attention"))
        again = {getattr(target, "__name__", "") for target in targets(graphs.backward)}
        assert ("_scaled_dot_product_flash_attention_for_cpu.default" in again) == (p == 0.0)
        assert not any("bernoulli" in name or "dropout" in name for name in again)


def test_dropout_is_drawn_once_and_a_layer_keeps_what_it_hands_on() -> None:
    module, x = blocks(None, dropout=0.3), leaf(4, 8)
    for form in ("mlp", "all"):
        graphs = check_against_eager(module, (x,), graphs=ap.trace(module, (x,), recompute=form))
        assert saved_bytes(graphs) == 3 * (2 * 4 * 8 * 4)  # of each block its input, and the mask
        assert aten.bernoulli.p not in targets(graphs.backward)


def test_running_statistics_are_updated_once_and_a_flat_sequence_is_one_group() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 4), nn.Tanh())
    x = leaf(16, 4)
    graphs = check_against_eager(module, (x,), graphs=ap.trace(module, (x,), recompute="all"))
    kept = {port.source for port in graphs.forward.outputs if port.role == "saved"}
    assert not any(name.startswith(("addmm", "gelu", "getitem", "tanh")) for name in kept)
    assert aten.gelu.default in targets(graphs.backward)


def test_checkpoints_in_the_model_keep_their_groups_beside_a_choice() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.covered = blocks(None), blocks(None)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.covered, self.plain(x), use_reentrant=False)

    module, x = Both(), leaf(4, 8)
    for form, boundaries in ((None, 13), ("mlp", 4)):
        graphs = check_against_eager(module, (x,), graphs=ap.trace(module, (x,), recompute=form))
        assert len([p for p in graphs.forward.outputs if p.role == "saved"]) == boundaries


def test_a_budget_of_less_saves_less_and_a_strict_trace_takes_it_too() -> None:
    module, x = blocks(None), leaf(4, 8)
    sizes = [saved_bytes(ap.trace(module, (x,), recompute=budget)) for budget in (1.0, 0.5, 0.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]
    graphs = ap.trace(module, (x,), strict=True, recompute=0.0)
    check_against_eager(module, (x,), graphs=graphs)
    assert saved_bytes(graphs) == sizes[-1]
    covered = blocks(PLAIN)
    check_against_eager(covered, (x,), graphs=ap.trace(covered, (x,), recompute=0.5))


def test_what_is_no_choice_is_refused() -> None:
    module, x = blocks(None), leaf(4, 8)
    with pytest.raises(CaptureError, match="recompute: forward runs in no region 'attention'; it has mlp"):
        ap.trace(module, (x,), recompute=["mlp", "attention"])
    with pytest.raises(CaptureError, match=r"it has none: tag the forward with ap.region, or use recompute='all'"):
        ap.trace(nn.Linear(8, 8), (x,), recompute="mlp")
    for bad in (2, -0.1, float("nan")):
        with pytest.raises(CaptureError, match=r"a memory budget is a share, from 0 .* to 1"):
            recompute_choice(bad)
    for worse in (True, object(), {"mlp": 1}, b"mlp"):
        with pytest.raises(CaptureError, match=r"give the name of a region, a list of names, \"all\", or a memory"):
            recompute_choice(worse)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="region name 'a b'"):
        recompute_choice(["a b"])


@pytest.mark.slow
def test_launches_and_host_reads_are_as_many_on_real_ranks(tmp_path: Any) -> None:
    program = tmp_path / "recompute_choice_program.py"
    program.write_text(
        textwrap.dedent(
            """
            import collections, dataclasses
            import torch, torch.distributed as dist, annopipe as ap
            from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
            from benchmarks.launch import end_rank
            from annopipe.costs.stored import stored_bytes
            from tests.graphs.helpers import check_against_eager
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
            config = dataclasses.replace(DeepSeekV3Config.tiny(), layers=1, dense_layers=0)
            stage = DeepSeekV3Stage(config, [0], dist.group.WORLD)
            torch.manual_seed(5 + dist.get_rank())
            x = torch.randn(2, 5, 32).requires_grad_()
            found = []
            for form in (None, "experts", ["attention", "moe"], "all", 0.2):
                graphs = ap.trace(stage, (x,), recompute=form)
                check_against_eager(stage, (x,), graphs=graphs, idle=True)
                kinds = [collections.Counter(row.kind for row in ap.region_table(g)) for g in
                         (graphs.forward, graphs.backward, graphs.backward_weight)]
                found.append(([(k["launch"], k["wait"], k["host"]) for k in kinds], stored_bytes(graphs).activation))
            assert all(kinds == found[0][0] for kinds, _ in found), found
            assert found[0][0][1][0] > 0 == found[0][0][1][2], found
            assert all(size < found[0][1] for _, size in found[1:]), found
            dist.barrier(); print("done"); end_rank()
            """
        )
    )
    outputs = run_ranks("recompute_choice_program", 2, env={"PYTHONPATH": f"{tmp_path}:."}, timeout_s=400)
    assert [output.splitlines()[-1] for output in outputs] == ["done", "done"]
