"""Programs: numbered actions of every rank."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.actions import Action
from annopipe.scheduling.numbering import Numbering
from annopipe.scheduling.programs import Programs
from tests.scheduling.strategies import programs

TWO = placement.linear(2)


def test_actions_and_their_texts_make_the_same_programs() -> None:
    texts = [["0UNSHARD", "0F0", "0B0"], ["1F0", "1F1/2", "(1F2;1B0)OVERLAP_F_B"]]
    made = Programs.of(TWO, 3, texts)
    assert made == Programs.of(TWO, 3, [[Action.parse(text) for text in row] for row in texts])
    assert made == Programs.of(TWO, 3, [iter(row) for row in texts])
    assert made.texts() == texts
    assert made.actions(0) == tuple(map(Action.parse, texts[0]))
    assert (made.microbatches, made.numbering.stages) == (3, 2)


@settings(deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_programs_numbered_otherwise_become_equal_when_their_actions_are(made, random) -> None:
    unused = Action("UNUSED", 0)
    extras = [*made.numbering.extras, unused]
    random.shuffle(extras)
    other = Numbering(made.placement.stages, made.microbatches, tuple(extras))
    ranks = [[other.number(action) for action in made.actions(rank)] for rank in range(made.placement.ranks)]
    assert Programs.numbered(made.placement, other, ranks) == made
    assert pickle.loads(pickle.dumps(made)) == made


def test_an_order_is_part_of_the_programs() -> None:
    assert Programs.of(TWO, 1, [["0F0", "0B0"], []]) != Programs.of(TWO, 1, [["0B0", "0F0"], []])
    assert Programs.of(TWO, 1, [["0F0"], []]) != Programs.of(TWO, 2, [["0F0"], []])


@pytest.mark.parametrize(
    ("microbatches", "ranks", "message"),
    [
        (1, [["0F0"]], "there are actions for 1 ranks, and the placement has 2"),
        (1, [[], [], []], "there are actions for 3 ranks, and the placement has 2"),
        (0, [[], []], "microbatches=0: give a whole number, 1 or more"),
        (True, [[], []], "microbatches=True: give a whole number"),
        (1.0, [[], []], "microbatches=1.0: give a whole number"),
        (1, [["0F0"], ["1F0", "1F"]], "rank 1, step 1: 'F' of stage 1, microbatch None: it needs a microbatch"),
        (1, [["0F0", "0FOO 0"], []], "rank 0, step 1: '0FOO 0' is not an action"),
        (1, [["0F1"], []], "rank 0, step 0: 0F1: there is no microbatch 1; microbatches are 0 to 0"),
        (1, [[], [Action("F", 2, 0)]], "rank 1, step 0: 2F0: there is no stage 2; stages are 0 to 1"),
        (
            1,
            [["0F0", None], []],
            "rank 0, step 1: None is not an action: give one, or its text; an idle step is left out",
        ),
        (1, [["0F0", ""], []], "rank 0, step 1: '' is not an action"),
        (1, [["0F0", 0], []], "rank 0, step 1: 0 is not an action"),
        (1, ["0F0", []], "rank 0, step 0: '0' is not an action"),
    ],
)
def test_what_is_no_program_is_refused_with_rank_and_step(microbatches, ranks, message) -> None:
    with pytest.raises(ScheduleError, match=message):
        Programs.of(TWO, microbatches, ranks)
