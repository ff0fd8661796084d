"""Annotations that other code wrote become regions; with upstream's vocabulary, plans are those of our own tags."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.fx.traceback as fx_traceback
from torch import Tensor, nn

import annopipe as ap
from annopipe import annotate
from annopipe.graphs import meta
from annopipe.graphs.regions import RegionRow
from annopipe.graphs.stage_graph import body
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, PlainMoE
from annopipe.models.moe import MoE
from tests.graphs.modules import Function, leaf, plain

CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), layers=3, dense_layers=1, experts=4, expert_groups=2)
NO_TABLE: Any = [("EP", "x")]
NAMED = ("attention", "dispatch", "experts", "combine", "shared", "router", "mlp", "embed", "head")


def torchtitan(patch: pytest.MonkeyPatch) -> None:
    """As its graph trainer: the whole expert layer is "compute", dispatch and combine inside of it; nothing else."""
    patch.setattr(annotate, "region", lambda _: contextlib.nullcontext())
    patch.setattr(annotate, "comm", lambda name: fx_traceback.annotate({"EP": name}))
    for cls in (MoE, PlainMoE):
        patch.setattr(cls, "forward", fx_traceback.annotate_fn({"EP": "compute"})(cls.forward))


def autoparallel(patch: pytest.MonkeyPatch) -> None:
    """As its DeepSeek model: only the exchanges are tagged. The expert layer is known by its modules."""
    patch.setattr(annotate, "region", lambda _: contextlib.nullcontext())
    patch.setattr(annotate, "comm", lambda name: fx_traceback.annotate({"comm_region": f"token_{name}"}))


def pieces(patch: pytest.MonkeyPatch) -> None:
    """Each of our regions by itself in upstream's words, where it has one."""
    words = {"experts": "compute"}
    patch.setattr(annotate, "comm", lambda name: fx_traceback.annotate({"EP_token_exchange": name}))
    patch.setattr(
        annotate,
        "region",
        lambda name: fx_traceback.annotate({"EP": words[name]}) if name in words else contextlib.nullcontext(),
    )


def traced(group: dist.ProcessGroup, moe: type[MoE] = MoE) -> ap.StageGraphs:
    stage = DeepSeekV3Stage(CONFIG, group=group, embed=True, head=True, moe=moe)
    return ap.trace(stage, (torch.zeros(2, 5, dtype=torch.int64),))


def rows_of(graph: ap.StageGraph | None) -> list[RegionRow]:
    assert graph is not None
    return ap.region_table(graph)


def by_region(problem: ap.OverlapProblem) -> list[int]:
    """A policy after Megatron-LM's order of regions, layer by layer; it sees nothing but path components."""
    layers = sorted({_layer(node.region) for node in problem.nodes})
    stages = {"combine": (0, 5), "attention": (6, 1), "dispatch": (4, 2), "experts": (2, 3)}

    def rank(node: Any) -> float:
        backward = node.lane == "B"
        layer = layers.index(_layer(node.region))
        layer = len(layers) - layer if backward else layer
        part = next((part for part in node.region.split("/") if part in stages), None)
        step = 3.5 if part is None else stages[part][0 if backward else 1]
        return 10 * layer + step + (0.5 if node.phase == "weight_grad" else 0.0)

    return problem.topological([rank(node) for node in problem.nodes])


def _layer(region: str) -> int:
    found = re.search(r"\d+", region)
    return int(found[0]) if found else -1


@pytest.fixture(scope="module", name="ours")
def _ours(group_of_one: dist.ProcessGroup) -> dict[type[MoE], ap.StageGraphs]:
    return {moe: traced(group_of_one, moe) for moe in (MoE, PlainMoE)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocabulary", "moe"), [(torchtitan, MoE), (autoparallel, MoE), (pieces, MoE), (torchtitan, PlainMoE)]
)
def test_with_upstreams_vocabulary_every_policy_gives_the_plan_of_our_tags(
    ours: dict[type[MoE], ap.StageGraphs],
    group_of_one: dist.ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
    vocabulary: Any,
    moe: type[MoE],
) -> None:
    with monkeypatch.context() as patch:
        vocabulary(patch)
        theirs = traced(group_of_one, moe)
    pairs = [(ap.multiplex(g.backward, g.forward, lanes=("B", "F"))) for g in (ours[moe], theirs)]
    assert [n.name for n in body(pairs[0].graph)] == [n.name for n in body(pairs[1].graph)]
    costs = {
        meta.placed(row.node).key: (1e-3 if row.kind == "launch" else 1e-5 * (1 + number % 7))
        for number, row in enumerate(ap.region_table(pairs[0]))
    }
    assert {"sequential", "alternate", "list"} <= set(ap.policies())
    named = [name for name in ap.policies() if name not in ("search", "optimal")]
    for policy in (*named, ap.Search(steps=1_000), by_region):
        first, second = (ap.overlap(pair, policy=policy, costs=costs) for pair in pairs)
        assert first.order == second.order, policy


@pytest.mark.parametrize("vocabulary", [torchtitan, autoparallel])
def test_regions_from_upstreams_vocabulary_are_ours(
    ours: dict[type[MoE], ap.StageGraphs],
    group_of_one: dist.ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
    vocabulary: Any,
) -> None:
    vocabulary(monkeypatch)
    theirs = traced(group_of_one)
    rules = set()
    pairs = [
        pair
        for graph in ("forward", "backward")
        for pair in zip(rows_of(getattr(ours[MoE], graph)), rows_of(getattr(theirs, graph)), strict=True)
    ]
    for mine, other in pairs:
        parts, other_parts = mine.region.split("/"), other.region.split("/")
        assert other_parts[0] == parts[0].replace("block", "blocks")
        if parts[-1] in NAMED:
            assert other_parts == [other_parts[0], *parts[1:]], (mine.node, mine.region, other.region)
        else:
            assert parts[-1] in ("moe", "unpermute"), "the norm, residual sum and reshaping around an expert layer"
            assert other_parts[1] == "moe"
        assert (mine.kind, mine.phase, mine.lane) == (other.kind, other.phase, other.lane)
        rules.add(other.rule)
    assert rules <= {"foreign tag", "module", "producer", "gradient sum", "pair"}
    assert {"foreign tag", "module"} <= rules


class Layers(nn.Module):
    """Two layers as torchtitan names and tags them, on one process."""

    def __init__(self, key: str = "EP", there: str = "dispatch", back: str = "combine") -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(n): nn.ModuleDict({"ffn": nn.Linear(4, 4)}) for n in (3, 7)})
        self.words = key, there, back

    def forward(self, x: Tensor) -> Tensor:
        key, there, back = self.words
        for name, layer in self.layers.items():
            with fx_traceback.annotate({"module_fqn": f"layers.{name}.moe", "pp_stage": 1, "ac_region_id": 4}):
                with fx_traceback.annotate({key: there}):
                    x = fc.all_to_all_single_autograd(x, None, None, dist.group.WORLD)
                with fx_traceback.annotate({"EP": "compute"}):
                    x = layer["ffn"](x)
                with fx_traceback.annotate({key: back}):
                    x = fc.all_to_all_single_autograd(x, None, None, dist.group.WORLD)
        return x


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    "words", [("EP", "dispatch", "combine"), ("comm_region", "token_dispatch", "token_combine")], ids=str
)
def test_the_layer_comes_from_the_modules_path_and_reaches_the_backward(words: tuple[str, str, str]) -> None:
    graphs = ap.trace(Layers(*words), (leaf(2, 4),))
    expected = {f"layers{n}/moe/{part}" for n in (3, 7) for part in ("dispatch", "experts", "combine")}
    for graph in (graphs.forward, graphs.backward):
        rows = rows_of(graph)
        assert {row.region for row in rows} == expected
        for row in rows:
            assert (meta.tag_kind(row.node) == "comm") == (row.region.rpartition("/")[2] != "experts")
            assert row.kind not in ("launch", "wait") or not row.region.endswith("experts")


@pytest.mark.usefixtures("group_of_one")
def test_a_table_of_ones_own_is_an_argument() -> None:
    tags = (*ap.UPSTREAM_TAGS, ap.ForeignTag("mine", "there", "moe/dispatch", "comm"), ap.ForeignTag("mine", "2", "b"))
    graphs = ap.trace(Layers("mine", "there", "back"), (leaf(2, 4),), tags=tags)
    launches = [row.region for row in rows_of(graphs.forward) if row.kind == "launch"]
    assert launches[::2] == ["layers3/moe/dispatch", "layers7/moe/dispatch"]

    def forward(_: Any, x: Tensor) -> Tensor:
        with fx_traceback.annotate({"mine": 2}):
            return x.sin()

    assert [row.region for row in rows_of(ap.trace(Function(forward), (plain(2),), tags=tags).forward)] == ["b"]
    assert [row.rule for row in rows_of(ap.trace(Function(forward), (plain(2),)).forward)] == ["untagged"]


def test_no_table_means_no_foreign_tags() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        with fx_traceback.annotate({"EP": "compute"}):
            return x.sin()

    assert [(r.region, r.rule) for r in rows_of(ap.trace(Function(forward), (plain(2),)).forward)] == [
        ("moe/experts", "foreign tag")
    ]
    assert [(r.region, r.rule) for r in rows_of(ap.trace(Function(forward), (plain(2),), tags=()).forward)] == [
        ("stage", "untagged")
    ]


def test_our_own_tag_wins_and_turns_module_names_off() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with ap.region("mine"), fx_traceback.annotate({"EP": "dispatch"}):
            x = x.sin()
        with fx_traceback.annotate({"EP": "compute"}), ap.region("inner"):
            x = x.cos()
        with fx_traceback.annotate({"EP": "combine"}):
            x = x.exp()
        return self.attention(x)

    module = Function(forward, attention=nn.Tanh())
    found = [(row.region, row.rule) for row in rows_of(ap.trace(module, (plain(2),)).forward)]
    assert found == [
        ("mine", "tag"),
        ("inner", "tag"),
        ("moe/combine", "foreign tag"),
        ("moe/combine", "producer"),
    ]


def test_a_model_without_tags_has_the_regions_of_its_modules() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input_layernorm, self.self_attn = nn.LayerNorm(4), nn.Linear(4, 4)
            self.post_attention_layernorm, self.mlp = nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 4), nn.GELU())

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.self_attn(self.input_layernorm(x))
            return x + self.mlp(self.post_attention_layernorm(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens, self.norm, self.lm_head = nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5)
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed_tokens(x)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm(x))

    graphs = ap.trace(Function(lambda self, x: self.model(x), model=Model()), (torch.ones(2, 3, dtype=torch.int64),))
    layers = [f"model/layers{n}/{part}" for n in (0, 1) for part in ("attention", "mlp")]
    order = list(dict.fromkeys(row.region for row in rows_of(graphs.forward)))
    assert [r for r in order if "layers" in r] == layers
    assert set(layers) <= {row.region for row in rows_of(graphs.backward)}


def test_the_norm_in_front_belongs_to_what_it_feeds_and_the_sum_behind_to_what_it_adds(
    group_of_one: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchtitan(monkeypatch)
    for row in rows_of(traced(group_of_one).forward):
        path = meta.module_path(row.node)
        if path.endswith("attention_norm"):
            assert row.region.endswith("/attention")
        elif path.endswith("feed_norm"):
            assert row.region.rpartition("/")[2] in ("mlp", "moe")


def test_nano_batches_of_one_layer_have_their_own_before_and_after(group_of_one: dist.ProcessGroup) -> None:
    def exchange(x: Tensor, word: str) -> Tensor:
        with fx_traceback.annotate({"EP": word}):
            return fc.all_to_all_single_autograd(x, None, None, group_of_one)

    def forward(_: Any, x: Tensor) -> tuple[Tensor, ...]:
        results = []
        for part in ap.nano_batches(x, 2):
            with fx_traceback.annotate({"EP": "compute"}):
                before = part.sin()
                inside = exchange(before, "dispatch").cos()
                results.append(exchange(inside, "combine").exp())
        return tuple(results)

    rows = rows_of(ap.trace(Function(forward), (leaf(4, 2),)).forward)
    names = {"sin": "router", "cos": "experts", "exp": "unpermute"}
    found = [(row.node.target.__name__.partition(".")[0], row.region, row.lane) for row in rows]
    for name, part in names.items():
        assert [(r, lane) for n, r, lane in found if n == name] == [(f"moe/{part}", "0"), (f"moe/{part}", "1")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ap.ForeignTag("EP", "x", "a b"), "region name 'a b'"),
        (lambda: ap.ForeignTag("EP", "x", "a", "network"), "kind 'network' is neither"),
        (lambda: ap.trace(nn.Tanh(), (plain(2),), tags=NO_TABLE), r"tags holds \('EP', 'x'\): give ap.ForeignTag"),
    ],
)
def test_a_malformed_table_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ap.GraphError, match=message):
        make()


@pytest.fixture(autouse=True)
def no_annotation_is_left_behind() -> Iterator[None]:
    yield
    assert "custom" not in fx_traceback.get_current_meta()
