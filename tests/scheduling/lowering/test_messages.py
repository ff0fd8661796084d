import pytest

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.checking.checker import check
from annopipe.scheduling.lowering.messages import add_messages
from annopipe.scheduling.programs import Programs


def lowered(where, microbatches, rows, **options):
    programs = add_messages(Programs.of(where, microbatches, [row.split() for row in rows]), **options)
    return [" ".join(row) for row in programs.texts()]


# name -> placement, microbatches, rows, rows with messages
GOLDEN = {
    "1F1B on two ranks": (
        *(placement.linear(2), 2, ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")),
        (
            "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
            "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
        ),
    ),
    "the other rank's message of the same tick comes first, on both": (
        *(placement.linear(2), 3, ("0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2")),
        (
            "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2",
            "1RECV_F0 1F0 1RECV_F1 1B0 1RECV_F2 1SEND_B0 1F1 1B1 1SEND_B1 1F2 1B2 1SEND_B2",
        ),
    ),
    "a send is in front of the receives of its tick": (
        *(placement.linear(3), 2, ("0F0 0F1", "1F0 1F1", "2F0 2F1")),
        ("0F0 0SEND_F0 0F1 0SEND_F1", "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1", "2RECV_F0 2F0 2RECV_F1 2F1"),
    ),
    "no message between stages of one rank": (
        *(placement.v(2), 1, ("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0")),
        (
            "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0",
            "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0",
        ),
    ),
    "the input gradient is sent before the weight gradient": (
        *(placement.linear(2), 1, ("0F0 0B0", "1F0 1I0 1W0")),
        ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1I0 1SEND_B0 1W0"),
    ),
    "messages of all parts follow a combination, in their order": (
        *(placement.linear(3), 2, ("0F0 0F1 0B0 0B1", "1F0 (1F1;1B0)OVERLAP_F_B 1B1", "2F0 2B0 2F1 2B1")),
        (
            "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
            "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1RECV_B0 (1F1;1B0)OVERLAP_F_B 1SEND_F1 1SEND_B0 1RECV_B1 1B1 1SEND_B1",
            "2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1",
        ),
    ),
    "operations and parameter actions stay where they are": (
        *(
            placement.linear(2),
            1,
            ("0UNSHARD 0F0 0OFFLOAD0 0B0 0REDUCE_GRAD 0RESHARD 0OPTIMIZER", "1F0 1B0 1OPTIMIZER"),
        ),
        (
            "0UNSHARD 0F0 0SEND_F0 0OFFLOAD0 0RECV_B0 0B0 0REDUCE_GRAD 0RESHARD 0OPTIMIZER",
            "1RECV_F0 1F0 1B0 1SEND_B0 1OPTIMIZER",
        ),
    ),
    "nano-batches send whole microbatches": (
        *(placement.linear(2), 1, ("0F0/2 0B0", "1F0 1B0/2")),
        ("0F0/2 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0/2 1SEND_B0"),
    ),
    "a stage that two others follow sends once": (
        *(placement.custom([0, 1, 2], [(0, 1), (0, 2)]), 1, ("0F0 0B0", "1F0 1B0", "2F0 2B0")),
        ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0", "2RECV_F0 2F0 2B0 2SEND_B0"),
    ),
    "sends that meet wait for each other": (
        *(placement.towers([0, 1], [2], top=[3]), 2, ("0F0 0F1", "1F0 1F1", "2F0 2F1", "3F0 3F1")),
        (
            "0F0 0SEND_F0 0F1 0SEND_F1",
            "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1",
            "2F0 2F1 2SEND_F0 2SEND_F1",
            "3RECV_F0 3F0 3RECV_F1 3F1",
        ),
    ),
    "one rank": (placement.linear(1), 1, ("0F0 0B0",), ("0F0 0B0",)),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_messages_are_placed(name):
    where, microbatches, rows, expected = GOLDEN[name]
    assert tuple(lowered(where, microbatches, rows)) == expected


def test_without_rendezvous_a_send_stands_behind_what_it_sends():
    rows = ("0F0 0F1", "1F0 1F1", "2F0 2F1", "3F0 3F1")
    found = lowered(placement.towers([0, 1], [2], top=[3]), 2, rows, rendezvous=False)
    assert found[2:] == ["2F0 2SEND_F0 2F1 2SEND_F1", "3RECV_F0 3F0 3RECV_F1 3F1"]


def test_stages_of_one_rank_that_meet_send_in_the_order_in_which_they_are_taken():
    where = placement.custom([0, 0, 1], [(0, 2), (1, 2)])
    found = lowered(where, 1, ("1F0 0F0", "2F0"))
    assert found == ["1F0 0F0 0SEND_F0 1SEND_F0", "2RECV_F0 2F0"]
    check(Programs.of(where, 1, [row.split() for row in found]), rendezvous=True)


def test_a_connection_that_skips_a_stage_does_not_hold_up_the_stage():
    where = placement.custom([0, 1, 2], [(0, 1), (1, 2), (0, 2)])
    found = lowered(where, 1, ("0F0 0B0", "1F0 1B0", "2F0 2B0"))
    assert found == [
        "0F0 0SEND_F0 0RECV_B0 0B0",
        "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0",
        "2RECV_F0 2F0 2B0 2SEND_B0",
    ]


def test_messages_that_are_there_already_are_refused():
    message = r"rank 0, step 1: 0SEND_F0 is there already; take compute_only\(\)"
    with pytest.raises(ScheduleError, match=message):
        lowered(placement.linear(2), 1, ("0F0 0SEND_F0 0B0", "1F0 1B0"))


def test_ranks_that_wait_for_each_other_are_named():
    with pytest.raises(
        ScheduleError, match="deadlock.* rank 1, step 1: 1F1 waits for 0F1 on rank 0, step 2 behind 0B0"
    ):
        lowered(placement.linear(2), 2, ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"))


def test_what_no_rank_does_is_named():
    with pytest.raises(ScheduleError, match="rank 0, step 1: 0B0 waits for 1B0, which no rank does; add it"):
        lowered(placement.linear(2), 1, ("0F0 0B0", "1F0"))
