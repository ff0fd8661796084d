"""Which nodes a piece means, and to which layer they belong."""

import dataclasses

import pytest

from annopipe.ordering.patterns import PatternError, parse
from annopipe.ordering.patterns.matching import match
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from tests.ordering.problems import model_problem

CHAINS = {"B": "combine experts dispatch attention", "F": "attention dispatch experts combine"}


def _found(problem: OverlapProblem, text: str) -> dict[str, tuple[str, int]]:
    """By node name: its piece and its layer."""
    matches = match(problem, parse(text))
    return {problem.nodes[index].name: (str(found.piece), found.layer) for index, found in matches.items()}


def _nodes(*regions: str, lane: str = "F", phase: str = "forward") -> OverlapProblem:
    nodes = tuple(OverlapNode(i, f"n{i}", region, "compute", lane, phase) for i, region in enumerate(regions))
    return OverlapProblem(nodes, ((),) * len(nodes))


def test_a_backward_counts_its_layers_from_the_last_block() -> None:
    found = _found(model_problem({"B": 3, "F": 3}, CHAINS), "B.experts | F.experts")
    assert {name: layer for name, (_, layer) in found.items() if not name.endswith("W")} == {
        **{f"B.block{2 - layer}.experts.compute": layer for layer in range(3)},
        **{f"F.block{layer}.experts.compute": layer for layer in range(3)},
    }


def test_without_w_a_region_means_its_weight_gradients_too_unless_a_piece_names_them() -> None:
    problem = model_problem({"B": 1}, {"B": CHAINS["B"]})
    assert _found(problem, "B.experts")["B.block0.experts.W"] == ("B.experts", 0)
    assert _found(problem, "B.experts ; B.experts.W")["B.block0.experts.W"] == ("B.experts.W", 0)
    assert "B.block0.experts.compute" not in _found(problem, "B.experts.W")


def test_the_innermost_region_that_fits_is_meant() -> None:
    problem = _nodes("block0/moe", "block0/moe/dispatch", "block0/moe/dispatch/permute")
    found = _found(problem, "F.moe ; F.dispatch")
    assert [found[f"n{i}"][0] for i in range(3)] == ["F.moe", "F.dispatch", "F.dispatch"]


def test_of_equally_inner_regions_the_longer_path_is_meant() -> None:
    found = _found(_nodes("a/moe/dispatch", "b/dispatch"), "F.dispatch ; F.moe/dispatch")
    assert found == {"n0": ("F.moe/dispatch", 0), "n1": ("F.dispatch", 0)}


def test_a_component_is_meant_as_a_whole() -> None:
    assert _found(_nodes("cross_attention", "attention"), "F.attention") == {"n1": ("F.attention", 0)}


def test_layers_are_told_apart_below_what_they_share() -> None:
    problem = _nodes("model/layers/3/attention", "model/layers/3/moe/dispatch", "model/layers/4/attention")
    assert [layer for _, layer in _found(problem, "F.attention ; F.dispatch").values()] == [0, 0, 1]


def test_what_stands_outside_the_layers_belongs_to_the_one_before() -> None:
    problem = _nodes("embed", "block0/attention", "block1/attention", "head")
    found = _found(problem, "F.embed ; F.attention ; F.head")
    assert [found[f"n{i}"][1] for i in range(4)] == [0, 0, 1, 1]


def test_a_stray_node_of_a_later_layer_does_not_renumber_the_layers() -> None:
    problem = _nodes("block0/attention", *["block1/attention"] * 3, *["block0/attention"] * 3, lane="B")
    found = _found(problem, "B.attention")
    assert [found[f"n{i}"][1] for i in range(7)] == [1, 0, 0, 0, 1, 1, 1]


def test_models_that_tag_every_layer_alike_have_a_layer_per_repetition() -> None:
    tagged = model_problem({"B": 3, "F": 2}, CHAINS)
    alike = model_problem({"B": 3, "F": 2}, CHAINS, tagged=False)
    text = "B.combine | F.attention ; F.dispatch | B.experts ; B.dispatch ; F.experts ; F.combine | B.attention"
    assert [match(alike, parse(text))[i].layer for i in range(len(alike.nodes))] == [
        match(tagged, parse(text))[i].layer for i in range(len(tagged.nodes))
    ]


@pytest.mark.parametrize(
    ("text", "marked", "message"),
    [
        ("B.combine | X.attention", "X.attention", "there is no lane 'X'; there are B, F"),
        ("F.atention", "F.atention", "lane F has no region 'atention'; its regions' paths have attention, block0"),
        ("F.moe/dispatch", "F.moe/dispatch", "lane F has no region 'moe/dispatch'"),
        ("F.experts ; F.experts.W", "F.experts.W", "experts of lane F has no weight gradients; leave out .W"),
        ("F.block0 ; F.attention ; F.dispatch ; F.experts ; F.combine", "F.block0", "means nothing that another piece"),
    ],
)
def test_a_piece_that_means_nothing_is_refused_at_its_place(text: str, marked: str, message: str) -> None:
    problem = model_problem({"B": 1, "F": 1}, CHAINS)
    with pytest.raises(PatternError) as caught:
        match(problem, parse(text))
    first, shown, caret = str(caught.value).split("\n")
    assert message in first
    assert shown[caret.index("^") : caret.index("^") + caret.count("^")] == marked


def test_optional_pieces_may_mean_nothing() -> None:
    problem = model_problem({"F": 1}, {"F": CHAINS["F"]})
    pattern = parse("B.combine | F.attention | F.shared")
    assert len(match(problem, pattern, optional=True)) == 1
    assert dataclasses.replace(pattern, text="") == pattern


def test_a_region_that_only_nano_batches_have_is_refused_with_their_lanes() -> None:
    chain = "attention dispatch experts"
    problem = model_problem({"F0": 1, "F1": 1, "F": 1}, {"F0": chain, "F1": chain, "F": "norm"})
    with pytest.raises(PatternError, match="lane F has no region 'attention'.*; lanes that have it: F0, F1\n"):
        match(problem, parse("F.attention"))
