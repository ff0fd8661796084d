"""Actions and their texts: each has one, and all others are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import Action, overlap
from tests.scheduling.strategies import LARGEST, actions

WRITTEN = (
    ("2F0", Action("F", 2, 0)),
    ("10B23", Action("B", 10, 23)),
    ("2I0", Action("I", 2, 0)),
    ("2W0", Action("W", 2, 0)),
    ("2SEND_F0", Action("SEND_F", 2, 0)),
    ("3RECV_F0", Action("RECV_F", 3, 0)),
    ("3SEND_B0", Action("SEND_B", 3, 0)),
    ("2RECV_B0", Action("RECV_B", 2, 0)),
    ("2UNSHARD", Action("UNSHARD", 2)),
    ("2RESHARD", Action("RESHARD", 2)),
    ("2REDUCE_GRAD", Action("REDUCE_GRAD", 2)),
    ("2F0/2", Action("F", 2, 0, nano_batches=2)),
    ("2OFFLOAD0", Action("OFFLOAD", 2, 0)),
    ("2OPTIMIZER", Action("OPTIMIZER", 2)),
    ("2ALL_REDUCE", Action("ALL_REDUCE", 2)),
    ("(0F1;1B0)OVERLAP_F_B", Action("OVERLAP_F_B", 0, None, (Action("F", 0, 1), Action("B", 1, 0)))),
    ("(1I0;0F1)OVERLAP_F_B", overlap(Action("I", 1, 0), Action("F", 0, 1))),
    ("(0F1;1W0)OVERLAP", overlap(Action("F", 0, 1), Action("W", 1, 0))),
    ("(0F1/2;1B0;1W3)OVERLAP_F_B", overlap(Action("F", 0, 1, (), 2), Action("B", 1, 0), Action("W", 1, 3))),
    (f"{LARGEST}F{LARGEST}", Action("F", LARGEST, LARGEST)),
)

NOT_ACTIONS = "is not an action: write stage, kind and microbatch"
REFUSED = (
    # Not wholly an action.
    ("", NOT_ACTIONS),
    (" ", NOT_ACTIONS),
    ("F", NOT_ACTIONS),
    ("0", NOT_ACTIONS),
    ("F0", NOT_ACTIONS),
    ("0FOO0 ", NOT_ACTIONS),
    (" 0F0", NOT_ACTIONS),
    ("0F0\n", NOT_ACTIONS),
    ("0F0 0F1", NOT_ACTIONS),
    ("0F0,0F1", NOT_ACTIONS),
    ("0F0x", NOT_ACTIONS),
    ("0f1", NOT_ACTIONS),
    ("0F-1", NOT_ACTIONS),
    ("-1F0", NOT_ACTIONS),
    ("0F0.5", NOT_ACTIONS),
    ("0F1/", NOT_ACTIONS),
    ("0F1/2/2", NOT_ACTIONS),
    ("0F1/-2", NOT_ACTIONS),
    ("0_F1", NOT_ACTIONS),
    ("0F_1", NOT_ACTIONS),
    ("0FÉ1", NOT_ACTIONS),
    # One text each: no leading zeros, no digits of other scripts, no plus sign.
    ("0F01", NOT_ACTIONS),
    ("00F1", NOT_ACTIONS),
    ("0F1/02", NOT_ACTIONS),
    ("+0F1", NOT_ACTIONS),
    ("٣F0", NOT_ACTIONS),  # the digit three, in Arabic
    ("0F³", NOT_ACTIONS),
    ("0F1/1", "'0F1/1' is not an action: '0F1' is how it is written"),
    ("0F1/0", "'F' of stage 0, microbatch 1: F, B, I and W run as 1 nano-batch or more, nothing else does"),
    # Numbers of ten digits, and too long for Python to read.
    ("1000000000F0", NOT_ACTIONS),
    ("0F1000000000", NOT_ACTIONS),
    (f"0F{'9' * 5000}", NOT_ACTIONS),
    # Fields that do not fit together.
    ("0F", "'F' of stage 0, microbatch None: it needs a microbatch, such as 0 in 2F0"),
    ("0SEND_F", "'SEND_F' of stage 0, microbatch None: it needs a microbatch"),
    ("0UNSHARD0", "'UNSHARD' of stage 0, microbatch 0: it is done once per stage and has no microbatch"),
    ("0REDUCE_GRAD1", "it is done once per stage and has no microbatch"),
    ("0SEND_F0/2", "F, B, I and W run as 1 nano-batch or more, nothing else does"),
    ("0UNSHARD/2", "F, B, I and W run as 1 nano-batch or more, nothing else does"),
    ("0OFFLOAD0/2", "F, B, I and W run as 1 nano-batch or more, nothing else does"),
    ("0X1", "an operation's name is two or more capitals, with underscores inside, such as OFFLOAD"),
    ("0OVERLAP_F_B", "a combination has two parts or more, each F, B, I or W"),
    ("0OVERLAP", "a combination has two parts or more, each F, B, I or W"),
    # Combinations.
    ("()OVERLAP", r"'\(\)OVERLAP' is not an action: '' is not an action"),
    ("(0F1)OVERLAP", r"'\(0F1\)OVERLAP' is not an action: .* a combination has two parts or more"),
    ("(0F1)OVERLAP_F_B", r"'\(0F1\)OVERLAP_F_B' is not an action: .* a combination has two parts or more"),
    ("(0F1;1B0)OVERLAP", r"'\(0F1;1B0\)OVERLAP' is not an action: '\(0F1;1B0\)OVERLAP_F_B' is how this combination"),
    ("(0F1;1W0)OVERLAP_F_B", r"'\(0F1;1W0\)OVERLAP' is how this combination is written"),
    ("(0F1;1B0)FOO", r"'\(0F1;1B0\)OVERLAP_F_B' is how this combination is written"),
    ("(0F1;1B0)", NOT_ACTIONS),
    ("(0F1;1B0)OVERLAP_F_B0", NOT_ACTIONS),
    ("(0F1;1B0)OVERLAP_F_B ", NOT_ACTIONS),
    ("0F1;1B0", NOT_ACTIONS),
    ("(0F1;1B0", NOT_ACTIONS),
    ("(0F1; 1B0)OVERLAP_F_B", r"'\(0F1; 1B0\)OVERLAP_F_B' is not an action: ' 1B0' is not an action"),
    ("(0F1;;1B0)OVERLAP_F_B", "'' is not an action"),
    ("(0F1;1B0;)OVERLAP_F_B", "'' is not an action"),
    ("((0F1;1B0)OVERLAP_F_B;0W0)OVERLAP_F_B", NOT_ACTIONS),
    ("(0F1;0F1)OVERLAP", "a combination runs each part once"),
    ("(0F1;0F1/2)OVERLAP", "a combination runs each part once"),
    ("(0F1;1SEND_F0)OVERLAP", "a combination has two parts or more, each F, B, I or W"),
    ("(0F1;1UNSHARD)OVERLAP", "a combination has two parts or more, each F, B, I or W"),
)

WRONG_NUMBER = "stages and microbatches are whole numbers from 0 to 999999999"
ONE_PART = (Action("F", 0, 1),)
TWO_PARTS = (Action("F", 0, 1), Action("B", 1, 0))
MISMADE = (
    (("F", -1, 0), f"'F' of stage -1, microbatch 0: {WRONG_NUMBER}"),
    (("F", 0, -1), WRONG_NUMBER),
    (("F", True, 0), f"'F' of stage True, microbatch 0: {WRONG_NUMBER}"),
    (("F", 0, False), WRONG_NUMBER),
    (("F", 1.0, 0), WRONG_NUMBER),
    (("F", 0, 1.0), WRONG_NUMBER),
    (("F", "0", 0), "'F' of stage '0'"),
    (("F", None, 0), WRONG_NUMBER),
    (("F", 10**9, 0), WRONG_NUMBER),
    (("F", 0, 0, (), True), "run as 1 nano-batch or more"),
    (("F", 0, 0, (), -2), "run as 1 nano-batch or more"),
    (("F", 0, 0, (), 2.0), "run as 1 nano-batch or more"),
    (("OVERLAP_F_B", 0, None, TWO_PARTS, 2), "run as 1 nano-batch or more, nothing else does"),
    (("offload", 0, 0), "an operation's name is two or more capitals"),
    (("OFFLOAD_", 0, 0), "an operation's name is two or more capitals"),
    (("OFFLOAD\n", 0, 0), "an operation's name is two or more capitals"),
    (("", 0, 0), "an operation's name is two or more capitals"),
    ((7, 0, 0), "an operation's name is two or more capitals"),
    (("F", 0, 0, TWO_PARTS), "only a combination has parts"),
    (("OFFLOAD", 0, 0, ONE_PART), "only a combination has parts"),
    (("OVERLAP", 0, None, TWO_PARTS), "these parts make a combination of kind OVERLAP_F_B"),
    (("OVERLAP_F_B", 1, None, TWO_PARTS), "a combination has the stage of its first part, 0, and no microbatch"),
    (("OVERLAP_F_B", 0, 1, TWO_PARTS), "a combination has the stage of its first part, 0, and no microbatch"),
    (("OVERLAP_F_B", 0, None, [*TWO_PARTS]), "the parts of a combination are a tuple of actions"),
    (("OVERLAP_F_B", 0, None, ("0F1", "1B0")), "the parts of a combination are a tuple of actions"),
    (("OVERLAP_F_B", 0, None, (overlap(*TWO_PARTS), Action("F", 0, 2))), "two parts or more, each F, B, I or W"),
)


@pytest.mark.parametrize(("text", "action"), WRITTEN, ids=[text for text, _ in WRITTEN])
def test_each_kind_has_its_text(text, action) -> None:
    assert str(action) == text
    assert Action.parse(text) == action


@settings(deadline=None)
@given(actions())
def test_reading_what_is_written_gives_the_same_action(action) -> None:
    assert Action.parse(str(action)) == action
    assert hash(Action.parse(str(action))) == hash(action)


@settings(deadline=None)
@given(actions(), actions())
def test_different_actions_have_different_texts(one, other) -> None:
    assert (str(one) == str(other)) == (one == other)


@settings(deadline=None)
@given(st.text(alphabet="019FBIWSENDRCV_;/() ", max_size=12))
def test_a_text_is_refused_or_is_how_its_action_is_written(text) -> None:
    try:
        action = Action.parse(text)
    except ScheduleError:
        return
    assert str(action) == text


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[repr(text)[:30] for text, _ in REFUSED])
def test_what_is_not_wholly_an_action_is_refused(text, message) -> None:
    with pytest.raises(ScheduleError, match=message):
        Action.parse(text)


@pytest.mark.parametrize(("fields", "message"), MISMADE)
def test_fields_that_do_not_fit_are_refused(fields, message) -> None:
    with pytest.raises(ScheduleError, match=message):
        Action(*fields)


@pytest.mark.parametrize("parts", [(), ONE_PART, ("0F1", "1B0"), (Action("UNSHARD", 0), Action("F", 0, 1))])
def test_overlap_refuses_what_cannot_run_together(parts) -> None:
    with pytest.raises(ScheduleError, match="combination"):
        overlap(*parts)


def test_computation_is_told_from_the_rest() -> None:
    computed = {text for text, action in WRITTEN if action.is_compute}
    assert {"2F0", "10B23", "2I0", "2W0", "2F0/2", "(0F1;1W0)OVERLAP", "(0F1;1B0)OVERLAP_F_B"} <= computed
    assert not computed & {"2SEND_F0", "2UNSHARD", "2OFFLOAD0", "2OPTIMIZER"}


def test_a_kind_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(ScheduleError, match="other kinds are F, B, I, W, SEND_F, RECV_F"):
        Action.parse("2G0")
