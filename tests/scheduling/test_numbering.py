"""Numbers of actions: dense, in blocks, and back again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import Action
from annopipe.scheduling.numbering import BLOCKS, Numberer, Numbering
from tests.scheduling.strategies import actions

SMALL = st.integers(0, 2), st.integers(0, 3)


def test_blocks_follow_each_other_stage_by_stage_and_microbatch_by_microbatch() -> None:
    numbering = Numbering(stages=3, microbatches=4)
    expected = [Action(kind, stage, mb) for kind in BLOCKS for stage in range(3) for mb in range(4)]
    assert [numbering.action(number) for number in range(numbering.size)] == expected
    assert [numbering.number(action) for action in expected] == list(range(numbering.base))
    assert (numbering.block, numbering.base, numbering.size) == (12, 96, 96)
    assert [numbering.first(kind) for kind in BLOCKS] == [12 * position for position in range(8)]
    assert numbering.first("SEND_F", 2) == 4 * 12 + 2 * 4


@settings(deadline=None)
@given(st.lists(actions(*SMALL), max_size=12))
def test_a_number_leads_back_to_its_action_its_text_and_its_kind(found) -> None:
    numberer = Numberer(stages=3, microbatches=4)
    numbers = [numberer.number(action) for action in found]
    numbering = numberer.numbering()
    assert [numbering.action(number) for number in numbers] == found
    assert [numbering.number(action) for action in found] == numbers
    assert [numbering.text(number) for number in numbers] == list(map(str, found))
    assert [numbering.kind(number) for number in numbers] == [action.kind for action in found]
    assert len(set(numbers)) == len(set(found))
    assert numbering.size == numbering.base + len(numbering.extras)


def test_extras_are_numbered_as_they_come_and_once() -> None:
    numberer = Numberer(stages=2, microbatches=1, extras=[Action("UNSHARD", 1)])
    nano = Action("F", 0, 0, nano_batches=2)
    assert [numberer.number(a) for a in (nano, Action("UNSHARD", 1), nano, Action("F", 0, 0))] == [17, 16, 17, 0]
    assert numberer.numbering().extras == (Action("UNSHARD", 1), nano)


def test_an_extra_that_is_not_there_has_no_number() -> None:
    with pytest.raises(KeyError):
        Numbering(2, 1).number(Action("UNSHARD", 0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2F0", "2F0: there is no stage 2; stages are 0 to 1"),
        ("1F3", "1F3: there is no microbatch 3; microbatches are 0 to 2"),
        ("2UNSHARD", "2UNSHARD: there is no stage 2; stages are 0 to 1"),
        ("1OFFLOAD3", "1OFFLOAD3: there is no microbatch 3"),
        ("(0F1;2B0)OVERLAP_F_B", r"\(0F1;2B0\)OVERLAP_F_B: there is no stage 2"),
        ("(0F1;1B3)OVERLAP_F_B", r"\(0F1;1B3\)OVERLAP_F_B: there is no microbatch 3"),
    ],
)
def test_a_stage_or_a_microbatch_that_is_not_there_is_refused(text, message) -> None:
    for number in (Numbering(2, 3).number, Numberer(2, 3).number):
        with pytest.raises(ScheduleError, match=message):
            number(Action.parse(text))
