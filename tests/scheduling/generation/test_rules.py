import re

import pytest

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.generation.rules import Rules
from annopipe.scheduling.numbering import Numbering
from annopipe.scheduling.spec import ScheduleSpec


def rules(where=None, microbatches=2, **fields):
    return Rules.of(ScheduleSpec(placement.v(2) if where is None else where, microbatches, **fields))


def strict(found, rank=0):
    numbering = Numbering(found.placement.stages, found.microbatches)
    return [numbering.text(number) for number in found.strict[rank]]


ALL = ("B", "I", "F", "W")


@pytest.mark.parametrize(
    ("fields", "split"),
    [
        ({}, [False] * 4),
        ({"priority": ("I", "F", "W")}, [True] * 4),
        ({"priority": ALL}, [True] * 4),
        ({"priority": ALL, "split_backward": False}, [False] * 4),
        ({"priority": ALL, "split_backward": [True, False, False, True]}, [True, False, False, True]),
        ({"priority": ALL, "split_backward": "unpaired", "pair": ("F", "B")}, [False] * 4),
    ],
)
def test_each_stage_has_one_form_of_the_backward(fields, split):
    found = rules(**fields)
    assert found.split == split
    assert found.unpaired == (fields.get("split_backward") == "unpaired")


def test_turns_are_places_in_the_order_of_each_rank():
    found = rules(traversal="breadth-first")
    for order, turn in ((found.forward_order, found.forward_turn), (found.backward_order, found.backward_turn)):
        assert sorted(pair for pairs in order for pair in pairs) == list(range(8))
        assert all(turn[pair] == place for pairs in order for place, pair in enumerate(pairs))
    assert found.forward_order[0] == [0, 1, 6, 7]
    assert found.backward_order[0] == [6, 7, 0, 1]


def test_a_strict_order_mixes_its_kinds_by_key():
    found = rules(in_order=(("F", "k, c"), ("B", "k + 1, 1 - c")))
    assert strict(found) == ["0F0", "3F0", "0F1", "3B0", "3F1", "0B0", "3B1", "0B1"]
    assert found.strict_kinds == {"F", "B"}


def test_a_strict_order_has_the_form_of_the_backward_that_each_stage_has():
    fields = {"priority": ALL, "split_backward": (True, False, False, False)}
    assert strict(rules(**fields, in_order=(("B", "k"),))) == ["3B0", "3B1"]
    assert strict(rules(**fields, in_order=(("I", "k"), ("W", "k")))) == ["0I0", "0W0", "0I1", "0W1"]


def test_two_copies_are_ordered_as_each_counts_its_microbatches():
    assert strict(rules(placement.bidirectional(2), 4, in_order=(("F", "k"),))) == ["0F0", "3F2", "0F1", "3F3"]


def test_a_formula_without_a_value_is_refused():
    with pytest.raises(ScheduleError, match=re.escape("'k // r' divides by zero")):
        rules(traversal="k // r")
    with pytest.raises(ScheduleError, match=re.escape("'k % c' divides by zero")):
        rules(in_order=(("F", "k % c"),))


def test_activations_are_those_of_the_costs():
    found = rules(costs=table(activation=[1, 2, 3, 4], kept_for_weight=0.25), memory=9.0)
    assert (found.activation, found.memory) == ([1.0, 2.0, 3.0, 4.0], [9.0, 9.0])
    assert found.freed_by_input == [0.75] * 4
