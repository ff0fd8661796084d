"""From a pattern to an order: steps, layers, what the pattern leaves open, and what it gets wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.graphs.reordering import check_order
from annopipe.ordering.builtin_policies import DUALPIPE, MEGATRON, dualpipe, megatron
from annopipe.ordering.patterns import PatternError, apply, parse
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from tests.ordering.problems import model_problem, random_problems

CHAINS = {"B": "combine experts dispatch attention", "F": "attention dispatch experts combine"}
TRIMMED = {
    policy: " ; ".join(
        " | ".join(piece.strip() for piece in step.split("|") if "shared" not in piece and "mlp" not in piece)
        for step in text.split(";")
    )
    for policy, text in ((dualpipe, DUALPIPE), (megatron, MEGATRON))
}


def _names(problem: OverlapProblem, text: str) -> list[str]:
    order = apply(problem, parse(text))
    check_order(problem.nodes, order, problem.dependencies)
    return [problem.nodes[index].name for index in order]


def test_one_layer_follows_the_steps() -> None:
    problem = model_problem({"B": 1, "F": 1}, CHAINS)
    assert _names(problem, TRIMMED[dualpipe]) == [
        "B.block0.combine.launch",
        "F.block0.attention.compute",
        "F.block0.dispatch.launch",
        "B.block0.combine.wait",
        "B.block0.experts.compute",
        "B.block0.dispatch.launch",
        "B.block0.experts.W",
        "F.block0.dispatch.wait",
        "F.block0.experts.compute",
        "F.block0.combine.launch",
        "B.block0.dispatch.wait",
        "B.block0.attention.compute",
        "B.block0.attention.W",
        "F.block0.combine.wait",
    ]


@pytest.mark.parametrize("policy", [dualpipe, megatron])
@pytest.mark.parametrize("layers", [{"B": 1, "F": 1}, {"B": 4, "F": 4}, {"B": 1, "F": 4}, {"B": 4, "F": 1}])
@pytest.mark.parametrize("tagged", [True, False])
def test_the_published_patterns_reproduce_the_registered_policies(policy, layers: dict[str, int], tagged: bool) -> None:
    problem = model_problem(layers, CHAINS, tagged=tagged, counts=True)
    assert apply(problem, parse(TRIMMED[policy])) == policy(problem)


def test_a_dense_lane_goes_beside_a_lane_with_experts() -> None:
    dense_and_experts = {"B": "mlp attention", "F": CHAINS["F"]}
    problem = model_problem({"B": 2, "F": 2}, dense_and_experts)
    order = dualpipe(problem)
    check_order(problem.nodes, order, problem.dependencies)
    names = [problem.nodes[index].name for index in order]
    launch, wait = names.index("F.block0.dispatch.launch"), names.index("F.block0.dispatch.wait")
    assert launch < names.index("B.block1.mlp.compute") < wait


def test_a_lane_without_more_layers_is_skipped_and_the_rest_is_in_order() -> None:
    problem = model_problem({"B": 1, "F": 3}, CHAINS)
    names = _names(problem, TRIMMED[dualpipe])
    rest = [name for name in names if "block1" in name or "block2" in name]
    assert rest == [name for name in (node.name for node in problem.nodes) if name in rest]


def test_forwards_alone_take_turns() -> None:
    problem = model_problem({"F0": 2, "F1": 2}, {"F0": CHAINS["F"], "F1": CHAINS["F"]})
    names = [problem.nodes[index].name for index in dualpipe(problem)]
    assert [name for name in names if not name.endswith("wait")][:10] == [
        "F0.block0.attention.compute",
        "F0.block0.dispatch.launch",
        "F1.block0.attention.compute",
        "F1.block0.dispatch.launch",
        "F0.block0.experts.compute",
        "F0.block0.combine.launch",
        "F1.block0.experts.compute",
        "F1.block0.combine.launch",
        "F0.block1.attention.compute",
        "F0.block1.dispatch.launch",
    ]


def test_backwards_alone_take_turns_and_the_last_attention_hides_the_next_combine() -> None:
    problem = model_problem({"B0": 2, "B1": 2}, {"B0": CHAINS["B"], "B1": CHAINS["B"]})
    names = [problem.nodes[index].name for index in megatron(problem)]
    kept = [name for name in names if not name.endswith(("wait", "W"))]
    assert kept[:9] == [
        "B0.block1.combine.launch",
        "B1.block1.combine.launch",
        "B0.block1.experts.compute",
        "B0.block1.dispatch.launch",
        "B1.block1.experts.compute",
        "B1.block1.dispatch.launch",
        "B0.block1.attention.compute",
        "B0.block0.combine.launch",
        "B1.block1.attention.compute",
    ]
    for policy in (dualpipe, megatron):
        check_order(problem.nodes, policy(problem), problem.dependencies)


def test_a_node_of_no_piece_comes_before_what_needs_it_and_an_unneeded_one_behind_its_input() -> None:
    nodes = (
        OverlapNode(0, "router", "block0/router", "compute", "F", "forward"),
        OverlapNode(1, "attention", "block0/attention", "compute", "F", "forward"),
        OverlapNode(2, "saved", "block0", "compute", "F", "forward"),
        OverlapNode(3, "launch", "block0/dispatch", "launch", "F", "forward", queue="ep"),
        OverlapNode(4, "grad", "block0/attention", "compute", "B", "input_grad"),
    )
    problem = OverlapProblem(nodes, ((), (), (1,), (0, 1), ()))
    assert _names(problem, "F.attention ; B.attention ; F.dispatch") == [
        "attention", "saved", "grad", "router", "launch"
    ]  # fmt: skip


def test_what_comes_behind_a_pieces_own_transfer_does_not_hold_up_the_next_step() -> None:
    nodes = (
        OverlapNode(0, "launch", "dispatch", "launch", "F", "forward", 1.0, "ep"),
        OverlapNode(1, "wait", "dispatch", "wait", "F", "forward", launch=0),
        OverlapNode(2, "sort", "dispatch", "compute", "F", "forward", 1.0),
        OverlapNode(3, "experts", "experts", "compute", "F", "forward", 1.0),
        OverlapNode(4, "beside", "attention", "compute", "B", "input_grad", 1.0),
    )
    problem = OverlapProblem(nodes, ((), (0,), (1,), (2,), ()))
    assert _names(problem, "F.dispatch ; B.attention ; F.experts") == ["launch", "beside", "wait", "sort", "experts"]


def test_counts_are_read_before_the_rows_are_launched() -> None:
    problem = model_problem({"B": 1, "F": 1}, CHAINS, counts=True)
    names = _names(problem, TRIMMED[dualpipe])
    dispatch = [name for name in names if name.startswith("F.block0.dispatch")]
    assert dispatch == [f"F.block0.dispatch.{kind}" for kind in ("launch", "wait", "host", "launch", "wait")]


def test_what_an_earlier_piece_needs_comes_with_it() -> None:
    nodes = (
        OverlapNode(0, "sizes", "dispatch", "compute", "B", "input_grad"),
        OverlapNode(1, "combine", "combine", "launch", "B", "input_grad", queue="ep"),
        OverlapNode(2, "attention", "attention", "compute", "F", "forward"),
    )
    problem = OverlapProblem(nodes, ((), (0,), ()))
    assert _names(problem, "B.combine ; F.attention ; B.dispatch") == ["sizes", "combine", "attention"]


def test_a_launch_is_not_brought_forward_by_a_piece_that_needs_it() -> None:
    problem = model_problem({"B": 1, "F": 1}, CHAINS)
    names = _names(problem, "F.experts ; B.combine ; F.attention | F.dispatch")
    assert names[0] == "B.block0.combine.launch"
    assert names.index("F.block0.attention.compute") < names.index("F.block0.dispatch.launch")


@settings(max_examples=150, deadline=None)
@given(
    random_problems(), st.permutations(["F.r", "B.r", "G.r", "B.r.W"]), st.lists(st.booleans(), min_size=3, max_size=3)
)
def test_every_pattern_gives_a_legal_order(problem: OverlapProblem, pieces: list[str], together: list[bool]) -> None:
    text = pieces[0]
    for piece, beside in zip(pieces[1:], together, strict=True):
        text += f" {'|' if beside else ';'} {piece}"
    order = apply(problem, parse(text), optional=True)
    check_order(problem.nodes, order, problem.dependencies)
    assert order == apply(problem, parse(text), optional=True)


def test_a_pattern_that_fits_nothing_is_refused_unless_it_is_optional() -> None:
    problem = model_problem({"F": 1}, {"F": CHAINS["F"]})
    with pytest.raises(PatternError, match="no lane 'B'"):
        apply(problem, parse("B.combine"))
    assert apply(problem, parse("B.combine"), optional=True) == list(range(len(problem.nodes)))
