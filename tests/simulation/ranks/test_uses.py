import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.simulation.ranks.looks import Looks
from annopipe.simulation.ranks.spans import Message, RankSpan
from annopipe.simulation.ranks.uses import users, waits
from tests.simulation.ranks.schedules import one_f_one_b, parts_of, simulate, v_shape, zero_bubble

KINDS = {"1f1b": one_f_one_b, "zb-h1": zero_bubble, "v": v_shape}


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 5), st.integers(1, 8), st.sampled_from([0.0, 0.5]))
def test_a_message_is_used_by_the_next_stage_forward_and_the_one_before_backward(kind, ranks, microbatches, latency):
    timeline = simulate(kind, KINDS[kind](ranks, microbatches), latency=latency)
    found = users(timeline, Looks([timeline]))
    for message, place in zip(timeline.messages, found, strict=True):
        assert place is not None
        span = timeline.spans[place[0]][place[1]]
        stage, direction, microbatch = parts_of(message.text.replace("SEND_", ""))[0]
        wanted = {(stage + 1, "F")} if direction == "F" else {(stage - 1, "B"), (stage - 1, "I")}
        assert {(s, what) for s, what, k in parts_of(span.text) if k == microbatch} & wanted
        assert span.start >= message.arrival


def test_in_a_graph_that_is_no_chain_the_first_action_after_the_arrival_uses_it():
    early, late = (RankSpan(1, f"7F{k}", "F", start, start + 1.0, 7, k) for k, start in ((1, 0.0), (0, 2.0)))
    chain = simulate("x", one_f_one_b(2, 1))
    message = Message("0SEND_F0", 0, 1, 1.0, 1.0, 1.5)
    timeline = _with(chain, spans=(chain.spans[0], (early, late)), messages=(message,))
    assert users(timeline, Looks([timeline])) == [(1, 1)]


@pytest.mark.parametrize("text", ["hello", "0SEND_F9", "0SEND_X0"])
def test_a_message_that_nothing_uses_has_no_user(text):
    chain = simulate("x", one_f_one_b(2, 1))
    timeline = _with(chain, messages=(Message(text, 0, 1, 1.0, 1.0, 1.0),))
    assert users(timeline, Looks([timeline])) == [None]


def test_an_action_waits_for_a_message_that_arrives_after_its_rank_is_free():
    timeline = simulate("1f1b", one_f_one_b(2, 2), latency=0.5)
    found = waits(timeline, users(timeline, Looks([timeline])))
    texts = {timeline.spans[rank][at].text: message.text for (rank, at), message in found.items()}
    assert texts == {"1F0": "0SEND_F0", "0B0": "1SEND_B0", "0B1": "1SEND_B1"}


def _with(timeline, **changes):
    from dataclasses import replace

    return replace(timeline, **changes)
