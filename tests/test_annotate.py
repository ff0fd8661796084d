"""Tags: full paths, kinds and lanes on FX nodes, forward and backward; nothing leaks, nothing happens in eager."""

import contextlib

import pytest
import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import annopipe as ap

KEYS = ("annopipe", "annopipe_kind", "annopipe_lane")


def tags(function, *args: Tensor) -> list[tuple]:
    """(operation, region, kind, lane) of each node of a traced function."""
    with fx_traceback.preserve_node_meta():
        graph = make_fx(function)(*args).graph
    return [
        (node.target.__name__.partition(".")[0], *(node.meta.get("custom", {}).get(key) for key in KEYS))
        for node in graph.nodes
        if node.op == "call_function"
    ]


@ap.region("decorated")
def decorated(x: Tensor) -> Tensor:
    return x.tan()


def nested(x: Tensor) -> Tensor:
    with ap.region("block"):
        x = x.sin()
        with ap.comm("dispatch"):
            x = x.cos()
        with ap.region("a/b"):
            x = x.exp()
        x = x.neg()
    x = decorated(x)
    with ap.region("block"), ap.nano_batch(1):
        x = x.abs()
    return x.sqrt()


def test_nodes_carry_the_full_path_the_kind_and_the_lane() -> None:
    assert tags(nested, torch.ones(2)) == [
        ("sin", "block", "compute", None),
        ("cos", "block/dispatch", "comm", None),
        ("exp", "block/a/b", "compute", None),
        ("neg", "block", "compute", None),
        ("tan", "decorated", "compute", None),
        ("abs", "block", "compute", 1),
        ("sqrt", None, None, None),
    ]


def test_tags_work_under_fullgraph_compilation() -> None:
    seen: list[str | None] = []

    def backend(graph_module, _inputs):
        seen.extend(
            node.meta.get("custom", {}).get("annopipe")
            for node in graph_module.graph.nodes
            if node.op in ("call_function", "call_method")
        )
        return graph_module

    x = torch.rand(2)
    compiled = torch.compile(nested, fullgraph=True, backend=backend)
    assert torch.equal(compiled(x), nested(x))
    assert seen == ["block", "block/dispatch", "block/a/b", "block", "decorated", "block", None]


def test_a_region_may_be_entered_twice_and_a_tag_used_again() -> None:
    def twice(x: Tensor) -> Tensor:
        for _ in range(2):
            with ap.region("a"), ap.region("a"):
                x = x.sin()
            with ap.comm("b"):
                x = decorated(x)
        return x

    assert [tag[1:3] for tag in tags(twice, torch.ones(2))] == [
        ("a/a", "compute"),
        ("b/decorated", "compute"),
    ] * 2


def test_a_decorated_function_keeps_its_name_and_is_tagged_wherever_it_is_called() -> None:
    @ap.comm("send")
    def send(x: Tensor, factor: float = 2.0) -> Tensor:
        """Send it."""
        return x * factor

    assert (send.__name__, send.__doc__) == ("send", "Send it.")
    assert tags(lambda x: send(x, factor=3.0), torch.ones(2)) == [("mul", "send", "comm", None)]
    with ap.region("outer"):
        assert torch.equal(send(torch.ones(2)), torch.full((2,), 2.0))


def test_functions_of_others_are_tagged_by_wrapping() -> None:
    softmax = ap.region("router")(torch.nn.functional.softmax)
    assert tags(lambda x: softmax(x, dim=0), torch.ones(2)) == [("_softmax", "router", "compute", None)]


def test_a_tag_does_not_leak_out_of_an_exception() -> None:
    def fails(x: Tensor) -> Tensor:
        try:
            with ap.region("inner"):
                raise ValueError  # noqa: TRY301 - that is the test
        except ValueError:
            return x.sin()

    assert tags(fails, torch.ones(2)) == [("sin", None, None, None)]


def halves(x: Tensor) -> Tensor:
    out = []
    for part in ap.nano_batches(x, 2):
        with ap.region("expert"):
            out.append(part.sin())
    return torch.cat(out).cos()


HALVES = [
    ("slice", None, None, 0),
    ("sin", "expert", "compute", 0),
    ("slice", None, None, 1),
    ("sin", "expert", "compute", 1),
    ("cat", None, None, None),
    ("cos", None, None, None),
]


def test_every_turn_of_nano_batches_is_a_lane_and_cuts_its_piece_there() -> None:
    assert tags(halves, torch.ones(4)) == HALVES


def test_loops_over_nano_batches_may_run_side_by_side() -> None:
    def pairs(x: Tensor, y: Tensor) -> Tensor:
        out = [a * b for a, b in zip(ap.nano_batches(x, 2), ap.nano_batches(y, 2), strict=True)]
        return torch.cat(out)

    lanes = [(tag[0], tag[3]) for tag in tags(pairs, torch.ones(4), torch.ones(4))]
    turn = ["slice", "slice", "mul"]
    assert lanes == [*((name, 0) for name in turn), *((name, 1) for name in turn), ("cat", None)]


def test_a_loop_in_a_loop_gives_the_lane_back() -> None:
    def loops(x: Tensor) -> Tensor:
        for part in ap.nano_batches(x, 2):
            for piece in ap.nano_batches(part, 2):
                piece.sin()
            part.cos()
        return x.exp()

    found = [(tag[0], tag[3]) for tag in tags(loops, torch.ones(8)) if tag[0] != "slice"]
    assert found == [("sin", 0), ("sin", 1), ("cos", 0), ("sin", 0), ("sin", 1), ("cos", 1), ("exp", None)]


@pytest.mark.parametrize("how", ["break", "raise", "return"])
def test_a_lane_does_not_leak_out_of_a_loop_that_ends_early(how: str) -> None:
    def loop(x: Tensor) -> Tensor:
        for part in ap.nano_batches(x, 2):
            if how == "raise":
                raise ValueError
            if how == "return":
                return part
            break
        return x

    def early(x: Tensor) -> Tensor:
        with ap.region("outer"):
            with contextlib.suppress(ValueError):
                loop(x)
            return x.sin()

    assert tags(early, torch.ones(4))[-1] == ("sin", "outer", "compute", None)


def test_nano_batches_work_under_fullgraph_compilation() -> None:
    seen: list[tuple] = []

    def backend(graph_module, _inputs):
        seen.extend(
            (node.name, node.meta.get("custom", {}).get("annopipe_lane"))
            for node in graph_module.graph.nodes
            if node.op in ("call_function", "call_method")
        )
        return graph_module

    x = torch.rand(5)
    assert torch.equal(torch.compile(halves, fullgraph=True, backend=backend)(x), halves(x))
    lanes = [lane for _, lane in seen]
    assert lanes == [0, 0, 1, 1, None, None]


def test_gradients_through_nano_batches_are_those_of_the_whole() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(x.sin().cos().sum(), x)
    (parts,) = torch.autograd.grad(halves(x).sum(), x)
    assert torch.equal(whole, parts)


def test_nothing_happens_when_nothing_traces() -> None:
    with ap.region("a"), ap.comm("b"), ap.nano_batch(0):
        assert "custom" not in fx_traceback.get_current_meta()


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a;b", "a|b", "/a", "a/", "a//b", 3])
def test_a_name_that_the_pattern_language_could_not_write_is_refused(name) -> None:
    def forward(x: Tensor) -> Tensor:
        with ap.region(name):
            return x.sin()

    with pytest.raises(ap.GraphError, match="region name"):
        tags(forward, torch.ones(2))


def test_a_bad_name_is_refused_also_when_nothing_traces() -> None:
    for tag in (ap.region, ap.comm):
        with pytest.raises(ap.GraphError, match="region name 'a b': use letters, digits"), tag("a b"):
            pass
    with pytest.raises(ap.GraphError, match=r"nano_batch\(-1\): the lane is a non-negative integer"), ap.nano_batch(-1):
        pass


@pytest.mark.parametrize("lane", [-1, 1.5, True, "F"])
def test_a_lane_that_is_no_number_is_refused(lane) -> None:
    def forward(x: Tensor) -> Tensor:
        with ap.nano_batch(lane):
            return x.sin()

    with pytest.raises(ap.GraphError, match="nano_batch"):
        tags(forward, torch.ones(2))


def test_nano_batches_split_unevenly_and_along_any_dimension() -> None:
    assert [len(part) for part in ap.nano_batches(torch.arange(7), 2)] == [4, 3]
    assert [part.shape for part in ap.nano_batches(torch.ones(2, 3), 3, dim=1)] == [(2, 1)] * 3
    pairs = list(ap.nano_batches({"x": torch.arange(4), "y": torch.ones(4, 2)}, 2))
    assert [pair["x"].tolist() for pair in pairs] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("x", "parts", "dim"),
    [
        (torch.ones(2), 3, 0),
        (torch.ones(2), 0, 0),
        ((torch.ones(2), torch.ones(3)), 2, 0),
        ([], 2, 0),
        ("text", 2, 0),
        (torch.ones(2), 2.0, 0),
        (torch.ones(2), 2, 1),
        (torch.ones(2), 2, None),
        (torch.ones(()), 2, 0),
    ],
)
def test_what_cannot_be_split_is_refused(x, parts, dim) -> None:
    with pytest.raises(ap.GraphError, match="nano_batches"):
        list(ap.nano_batches(x, parts, dim))


def test_what_is_no_tensor_in_what_is_split_is_named() -> None:
    with pytest.raises(ap.GraphError, match="got dict with int in it and 2 parts"):
        list(ap.nano_batches({"x": torch.ones(2), "n": 3}, 2))


def test_backward_nodes_carry_the_region_of_their_forward_operation() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * ctx.saved_tensors[0]

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            with ap.region("linear"):
                x = self.linear(x)
            with ap.region("own"):
                return Square.apply(x)

    graphs = ap.trace(Stage(), (torch.ones(1, 2, requires_grad=True),))
    assert graphs.backward is not None
    rows = ap.region_table(graphs.backward)
    assert {row.region for row in rows if row.node.target is torch.ops.aten.mul.Tensor} == {"own"}
    assert {row.region for row in rows if row.node.target is torch.ops.aten.mm.default} == {"linear"}
    assert {row.rule for row in rows} == {"tag"}


def test_tags_reach_graphs_without_gradients() -> None:
    class Stage(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with ap.region("only"):
                return x.sin()

    graphs = ap.trace(Stage(), (torch.ones(2),))
    assert [(row.region, row.rule) for row in ap.region_table(graphs.forward)] == [("only", "tag")]
