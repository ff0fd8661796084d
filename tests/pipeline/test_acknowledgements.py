"""What a received message says about the messages that were sent."""

import pytest

import annopipe as ap
from annopipe.pipeline.ranks.acknowledgements import acknowledged


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zbv", "dualpipev", "interleaved-1f1b", "wave"])
def test_what_counts_as_taken_has_been_computed_with_before_the_message_back_was_sent(name):
    schedule = ap.schedule(name, ranks=4, microbatches=9).lowered()
    rank_of, texts = schedule.placement.rank_of, schedule.programs.texts()
    for rank in range(4):
        for (way, source, _, microbatch), taken in acknowledged(schedule.ranks, schedule.placement, rank).items():
            peer = rank_of[source]
            sends = [a for a in schedule.ranks[rank] if a.kind.startswith("SEND") and goes_to(a, rank_of) == peer]
            before = texts[peer][: texts[peer].index(f"{source}SEND_{way}{microbatch}")]
            # The last of them has been computed with, and the others were asked for before it.
            for action in sends[taken - 1 : taken]:
                kinds = "F" if action.kind == "SEND_F" else "BI"
                assert any(f"{receiver(action)}{kind}{action.microbatch}" in text for kind in kinds for text in before)
            asked = [before.index(f"{receiver(a)}RECV_{a.kind[-1]}{a.microbatch}") for a in sends[:taken]]
            assert asked == sorted(asked)


def test_under_1f1b_what_is_kept_does_not_grow_with_the_microbatches():
    most = []
    for microbatches in (8, 32):
        schedule = ap.schedule("1f1b", ranks=4, microbatches=microbatches).lowered()
        taken, kept, largest = acknowledged(schedule.ranks, schedule.placement, 1), {0: [0, 0], 2: [0, 0]}, 0
        for action in schedule.ranks[1]:
            if action.kind.startswith("SEND"):
                kept[goes_to(action, schedule.placement.rank_of)][0] += 1
            for kind, peer in (("F", 0), ("B", 2)):
                if action.kind == kind and (kind, peer, action.stage, action.microbatch) in taken:
                    kept[peer][1] = max(kept[peer][1], taken[kind, peer, action.stage, action.microbatch])
            largest = max(largest, sum(sent - done for sent, done in kept.values()))
        most.append(largest)
    assert most[0] == most[1] < 8


def receiver(action):
    return action.stage + (1 if action.kind == "SEND_F" else -1)


def goes_to(action, rank_of):
    return rank_of[receiver(action)]
