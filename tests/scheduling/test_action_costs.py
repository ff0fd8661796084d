"""Costs of actions: what each takes, and what is refused, with its message."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import CostError
from annopipe.scheduling.action_costs import ActionCosts, table
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.numbering import Numbering
from tests.scheduling.strategies import actions

PAIR = Action.parse("(0F2;1B3)OVERLAP_F_B")
TIME = st.floats(0.0, 1e6)


def test_a_time_is_one_number_one_per_stage_or_a_function_of_stage_and_microbatch() -> None:
    costs = table(F=2, I=[1.0, 3.0], W=lambda stage, microbatch: 10.0 * stage + microbatch)
    assert [costs.duration(Action(kind, 1, 2)) for kind in ("F", "I", "W")] == [2.0, 3.0, 12.0]
    assert [costs.times(kind, 1, 3) for kind in ("F", "I", "W")] == [[2.0] * 3, [3.0] * 3, [10.0, 11.0, 12.0]]


def test_a_full_backward_takes_its_halves_unless_it_has_a_time() -> None:
    halves = {"I": [1.0, 2.0], "W": lambda _, microbatch: 0.5 * microbatch}
    assert table(**halves).duration(Action("B", 1, 3)) == 3.5
    assert table(**halves).times("B", 1, 2) == [2.0, 2.5]
    assert table(**halves, B=0).duration(Action("B", 1, 3)) == 0.0
    assert table(**halves, B=[7.0, 8.0]).times("B", 1, 2) == [8.0, 8.0]


def test_messages_take_no_time_of_their_rank() -> None:
    assert table(send=5.0).duration(Action("SEND_F", 0, 0)) == 0.0
    assert table(send=[5.0, 6.0]).times("send", 1, 2) == [6.0, 6.0]


def test_operations_have_times_by_kind_and_none_where_none_is_given() -> None:
    costs = ActionCosts(operations={"UNSHARD": [1.0, 2.0], "OFFLOAD": lambda stage, microbatch: stage + microbatch})
    assert costs.duration(Action("UNSHARD", 1)) == 2.0
    assert costs.duration(Action("OFFLOAD", 1, 3)) == 4.0
    assert costs.duration(Action("OFFLOAD", 1)) == 1.0
    assert costs.duration(Action("RESHARD", 1)) == 0.0


def test_a_combination_takes_the_sum_its_own_time_or_that_of_the_function() -> None:
    assert table(F=1.0, B=2.0).duration(PAIR) == 3.0
    assert table(F=1.0, B=2.0, FB=2.5).duration(PAIR) == 2.5
    by_stages = table(FB=lambda forward, backward: 10.0 * forward + backward)
    assert by_stages.duration(PAIR) == 1.0
    assert by_stages.duration(Action.parse("(1B3;0F2)OVERLAP_F_B")) == 1.0
    assert table(FB=9.0, F=1.0, I=2.0).duration(Action.parse("(0F2;1I3)OVERLAP_F_B")) == 3.0
    chosen = table(FB=9.0, overlap=lambda action: 0.5 if action == PAIR else None)
    assert chosen.duration(PAIR) == 0.5
    assert chosen.duration(Action.parse("(0F3;1B3)OVERLAP_F_B")) == 9.0
    assert chosen.duration(Action.parse("(0F3;1W3)OVERLAP")) == 2.0


def test_memory_is_per_stage() -> None:
    costs = table(activation=[1.0, 2.0], parameters=3)
    assert [costs.activation_of(stage) for stage in (0, 1)] == [1.0, 2.0]
    assert costs.parameters_of(1) == 3.0


def test_exposed_communication_of_a_pair_is_its_own_or_that_of_its_parts() -> None:
    parts = {"F": 1.0, "B": [2.0, 3.0]}
    assert ActionCosts(F=2.0, B=4.0, exposed=parts).exposed_of(PAIR) == 4.0
    assert ActionCosts(exposed=parts | {"FB": 0.5}).exposed_of(PAIR) == 0.5
    assert ActionCosts(exposed=parts | {"FB": 0.5}).exposed_of(Action("B", 1, 0)) == 3.0
    assert ActionCosts().exposed_of(Action("W", 1, 0)) == 0.0


def test_exposed_communication_is_that_of_the_halves_and_of_the_pair_in_either_order() -> None:
    halves = table(exposed={"I": 0.25, "W": 0.5})
    assert halves.exposed_of(Action.parse("0B0")) == 0.75
    pairs = table(F=1.0, B=2.0, exposed={"FB": [0.1, 0.9]})
    forward, backward = Action.parse("0F1"), Action.parse("1B0")
    assert pairs.exposed_of(overlap(forward, backward)) == pairs.exposed_of(overlap(backward, forward)) == 0.1


def test_a_combination_exposes_no_more_than_it_takes() -> None:
    costs = table(exposed={"F": 0.9, "W": 0.9}, overlap=lambda action: 1.0)
    assert costs.exposed_of(Action.parse("(0F1;0W0)OVERLAP")) == 1.0


def test_numbers_of_other_types_are_numbers() -> None:
    costs = table(F=np.float32(0.5), I=np.int64(2), W=Fraction(1, 4), FB=lambda forward, backward: np.float32(1.5))
    found = [costs.duration(Action(kind, 0, 0)) for kind in ("F", "I", "W")] + [costs.duration(PAIR)]
    assert found == [0.5, 2.0, 0.25, 1.5]
    assert all(type(time) is float for time in found)


@settings(deadline=None)
@given(actions(st.integers(0, 3), st.integers(0, 3)), TIME, TIME, TIME)
def test_every_action_has_a_time_and_the_same_one_from_numbers_sequences_and_functions(
    action, forward, inputs, weights
):
    given_as = (
        {"F": forward, "I": inputs, "W": weights},
        {"F": [forward] * 4, "I": (inputs,) * 4, "W": [weights] * 4},
        {"F": lambda s, m: forward, "I": lambda s, m: inputs, "W": lambda s, m: weights},
    )
    times = {table(**costs).duration(action) for costs in given_as}
    assert len(times) == 1
    assert 0.0 <= times.pop() < math.inf


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(1, 5), TIME)
def test_times_of_a_stage_are_the_durations_of_its_actions(stage, microbatches, base) -> None:
    costs = table(F=base, I=lambda s, m: base * s + m, W=[1.0, 2.0, 3.0, 4.0])
    for kind in ("F", "I", "W", "B"):
        expected = [costs.duration(Action(kind, stage, microbatch)) for microbatch in range(microbatches)]
        assert costs.times(kind, stage, microbatches) == expected


def test_sequences_fit_the_stages() -> None:
    numbering = Numbering(stages=3, microbatches=1)
    table(F=[1.0] * 3, I=2.0, W=lambda s, m: 1.0, exposed={"F": (0.0,) * 3}).refuse_other_stages(numbering)
    for name, costs in {
        "F": table(F=[1.0]),
        "B": table(B=[1.0] * 4),
        "send": table(send=[]),
        "activation": table(activation=[1.0, 2.0]),
        "parameters": table(parameters=(1.0,)),
        "exposed I": ActionCosts(exposed={"I": [1.0]}),
        "operations OFFLOAD": ActionCosts(operations={"OFFLOAD": [1.0]}),
    }.items():
        with pytest.raises(
            CostError, match=rf"^{name} has \d entries and the schedule 3 stages; give one number for all"
        ):
            costs.refuse_other_stages(numbering)


def test_a_stage_without_an_entry_is_refused_when_it_is_used() -> None:
    with pytest.raises(CostError, match="F has 1 entries and stage 1 none; give one for each stage"):
        table(F=[1.0]).duration(Action("F", 1, 0))
    with pytest.raises(CostError, match="activation has 2 entries and stage 2 none"):
        table(activation=[1.0, 2.0]).activation_of(2)


BAD_NUMBERS = (-1.0, -1e-300, math.nan, math.inf, True, "1", None, 1j, 10**400, [[1.0]], np.array([1.0]))
NUMBER_MESSAGE = ": give a number that is finite and not negative"


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=lambda bad: repr(bad)[:10])
@pytest.mark.parametrize("name", ["F", "I", "W", "send", "activation", "parameters", "latency", "kept_for_weight"])
def test_what_is_no_time_or_size_is_refused(name, bad) -> None:
    with pytest.raises(CostError, match=rf"^{name} is .*{NUMBER_MESSAGE}"):
        table(**{name: bad})
    if name != "latency":
        with pytest.raises(CostError, match=rf"^{name} is .*{NUMBER_MESSAGE}"):
            table(**{name: [1.0, bad]})


@pytest.mark.parametrize("bad", [value for value in BAD_NUMBERS if not isinstance(value, np.ndarray)])
def test_what_functions_return_is_looked_at_when_it_is_used(bad) -> None:
    returns = {"F": lambda s, m: bad, "I": lambda s, m: bad, "FB": lambda f, b: bad}
    with pytest.raises(CostError, match=f"^F of stage 1, microbatch 2 is .*{NUMBER_MESSAGE}"):
        table(**returns).duration(Action("F", 1, 2))
    with pytest.raises(CostError, match=f"^F of stage 1, microbatch 0 is .*{NUMBER_MESSAGE}"):
        table(**returns).times("F", 1, 3)
    with pytest.raises(CostError, match=f"^I of stage 1, microbatch 2 is .*{NUMBER_MESSAGE}"):
        table(**returns).duration(Action("B", 1, 2))
    with pytest.raises(CostError, match=rf"^FB of \(0F2;1B3\)OVERLAP_F_B is .*{NUMBER_MESSAGE}"):
        table(**returns).duration(PAIR)
    with pytest.raises(CostError, match=f"^OFFLOAD of stage 1, microbatch 2 is .*{NUMBER_MESSAGE}"):
        ActionCosts(operations={"OFFLOAD": lambda s, m: bad}).duration(Action("OFFLOAD", 1, 2))
    if bad is not None:
        with pytest.raises(CostError, match=rf"^\(0F2;1B3\)OVERLAP_F_B is .*{NUMBER_MESSAGE}"):
            table(overlap=lambda action: bad).duration(PAIR)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"B": -1.0}, f"B is -1.0{NUMBER_MESSAGE}"),
        ({"FB": math.nan}, f"FB is nan{NUMBER_MESSAGE}"),
        ({"FB": [1.0, 2.0]}, r"FB is \[1.0, 2.0\]: give a number"),
        ({"latency": [1.0]}, r"latency is \[1.0\]: give a number"),
        ({"kept_for_weight": lambda s: 0.5}, "kept_for_weight is <function .*: give a number"),
        ({"latency": lambda s, m: 1.0}, "latency is <function .*: give a number"),
        ({"activation": lambda s: 1.0}, "activation is <function .*: give a number"),
        ({"parameters": lambda s: 1.0}, "parameters is <function .*: give a number"),
        ({"exposed": {"F": lambda s: 1.0}}, "exposed F is <function .*: give a number"),
        ({"exposed": {"FB": -1.0}}, f"exposed FB is -1.0{NUMBER_MESSAGE}"),
        ({"exposed": {"SEND_F": 1.0}}, "exposed names 'SEND_F'; it knows F, B, I, W and FB"),
        ({"operations": {"OFFLOAD": math.inf}}, f"operations OFFLOAD is inf{NUMBER_MESSAGE}"),
        ({"operations": {"OFFLOAD": None}}, f"operations OFFLOAD is None{NUMBER_MESSAGE}"),
        (
            {"operations": {"F": 1.0}},
            "operations names 'F': it takes UNSHARD, RESHARD, REDUCE_GRAD and operations that",
        ),
        ({"operations": {"SEND_F": 1.0}}, "operations names 'SEND_F': .* and send are arguments of their own"),
        (
            {"operations": {"OVERLAP": 1.0}},
            "operations names 'OVERLAP': .* overlap and send are arguments of their own",
        ),
        ({"operations": {"offload": 1.0}}, "operations names 'offload': .* that users add, in capitals"),
        ({"overlap": 2.0}, r"overlap is 2.0: give a function of the action; FB= and lanes= take numbers too"),
        ({"forward": 1.0}, r"table\(\) does not know 'forward'; it takes F, I, W, B, FB, send"),
    ],
)
def test_what_does_not_fit_is_refused(given, message) -> None:
    with pytest.raises(CostError, match=f"^{message}"):
        table(**given)


def test_a_user_operation_may_be_called_like_an_argument() -> None:
    costs = ActionCosts(FB=2.5, operations={"FB": 7.0})
    assert costs.duration(Action("FB", 0, 0)) == 7.0
    assert costs.duration(overlap(Action("F", 0, 2), Action("B", 0, 1))) == 2.5


def test_costs_are_printed_as_a_call_with_what_is_not_usual():
    assert repr(table()) == "ActionCosts()"
    assert repr(table(F=2.0, send=[0.5, 0.0])) == "ActionCosts(F=2.0, send=[0.5, 0.0])"


@pytest.mark.parametrize("name", ["exposed", "operations"])
def test_what_is_no_mapping_is_refused(name):
    with pytest.raises(CostError, match=f"{name} is 5: give a mapping of kinds to times"):
        table(**{name: 5})


LANES = {"F/2": 0.75, "F+B/2": [2.0, 3.0], "F+F": lambda stage, microbatch: 1.5 + stage}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0F0/2", 0.75),
        ("0F0/3", 1.0),  # nothing is known: the time of the whole
        ("0B0/2", 2.0),
        ("(1F1;0B0/2)OVERLAP_F_B", 3.0),
        ("(0F1/2;0B0/2)OVERLAP_F_B", 2.25),  # not known either: as a pair of wholes
        ("(0F1;0F0)OVERLAP", 1.5),
        ("(0F1/2;0W0)OVERLAP", 1.75),
    ],
)
def test_lanes_take_what_is_given_for_them_or_what_the_wholes_take(text: str, expected: float) -> None:
    costs = table(FB=2.25, lanes=LANES)
    assert costs.duration(Action.parse(text)) == expected


def test_a_function_of_the_action_comes_before_the_table_of_lanes() -> None:
    costs = table(lanes=LANES, overlap=lambda action: 5.0 if action.nano_batches > 1 else None)
    assert costs.duration(Action.parse("0F0/2")) == 5.0
    assert costs.duration(Action.parse("(1F1;0B0/2)OVERLAP_F_B")) == 3.0


@pytest.mark.parametrize(
    ("text", "communication", "exposed"),
    [
        ("0F0", 0.5, 0.5),
        ("0F0/2", 0.5, 0.25),  # saves 0.25 s, and so hides as much
        ("0F0/3", 0.5, 0.5),
        ("0B0/2", 0.625, 0.125),
        ("(0F1;0B0)OVERLAP_F_B", 1.0, 0.25),
        ("(0F1;0B0/2)OVERLAP_F_B", 1.125, 0.0),  # takes 0.25 s less than the wholes with what they hide
        ("(0F1/2;0B0/2)OVERLAP_F_B", 1.125, 0.25),
        ("(0F0;0F1)OVERLAP", 1.0, 0.5),
    ],
)
def test_what_lanes_save_they_hide(text: str, communication: float, exposed: float) -> None:
    costs = table(
        FB=2.25,
        exposed={"F": 0.5, "I": 0.5, "FB": 0.25, "B/2": 0.125},
        communication={"B/2": 0.625},
        lanes={"F/2": 0.75, "F+B/2": 2.0, "F+F": 1.5},
    )
    action = Action.parse(text)
    assert costs.communication_of(action) == communication
    assert costs.exposed_of(action) == exposed


def test_a_function_says_what_is_inside_of_lanes() -> None:
    costs = table(exposed={"F": 0.5}, inside=lambda action: (0.75, 0.25) if action.parts else None)
    both = Action.parse("(0F0;0F1)OVERLAP")
    assert (costs.communication_of(both), costs.exposed_of(both)) == (0.75, 0.25)
    assert (costs.communication_of(Action.parse("0F0/2")), costs.exposed_of(Action.parse("0F0"))) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lanes": {"F/2": -1.0}}, "lanes F/2 is -1.0"),
        ({"lanes": 1.0}, "lanes is 1.0: give a mapping"),
        ({"lanes": {1: 1.0}}, "lanes names 1; it knows names of lanes"),
        ({"communication": {"FB": 1.0}}, "communication names 'FB'; it knows F, B, I and W"),
        ({"communication": {"F": lambda s: 1.0}}, "communication F is <function .*: give a number"),
        ({"inside": 1.0}, "inside is 1.0: give a function of the action"),
    ],
)
def test_lanes_that_do_not_fit_are_refused(given, message) -> None:
    with pytest.raises(CostError, match=f"^{message}"):
        table(**given)
