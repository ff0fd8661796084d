"""Every kind of broken schedule, and what is said about it."""

import re

import pytest

from annopipe.errors import CostError, ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.checking.checker import check
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.schedule_class import Schedule

CHAIN = placement.linear(2)
SEND = ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0")

# name -> placement, microbatches, rows, what the first line says
BROKEN = {
    "an action of another rank's stage": (
        *(CHAIN, 1, ("0F0 1F0 0B0", "1B0")),
        "rank 0, step 1: 1F0 is of stage 1, and this rank holds 0; move it to rank 1",
    ),
    "an operation of another rank's stage": (
        *(CHAIN, 1, ("0F0 0B0 1OFFLOAD0", "1F0 1B0")),
        "rank 0, step 2: 1OFFLOAD0 is of stage 1",
    ),
    "a part of another rank's stage": (
        *(CHAIN, 2, ("0F0 (0B0;1F0)OVERLAP_F_B", "1B0")),
        "rank 0, step 1: (0B0;1F0)OVERLAP_F_B is of stage 1",
    ),
    "parameters of another rank's stage": (
        *(CHAIN, 1, ("0F0 0B0", "0UNSHARD 1F0 1B0")),
        "rank 1, step 0: 0UNSHARD is of stage 0, and this rank holds 1",
    ),
    "a microbatch of the other copy": (
        *(placement.bidirectional(2), 2, ("0F0 0F1 3F1 3B1 0B1 0B0", "1F0 1B0 2F1 2B1")),
        "rank 0, step 1: 0F1 is on copy 0 of the model, which sees microbatches 0 to 0",
    ),
    "a microbatch when the copy sees none": (
        *(placement.bidirectional(2), 1, ("0F0 0B0", "1F0 1B0 2F0")),
        "rank 1, step 2: 2F0 is on copy 1 of the model, which sees no microbatch",
    ),
    "an action twice": (
        *(CHAIN, 1, ("0F0 0F0 0B0", "1F0 1B0")),
        "rank 0, step 1: 0F0 is done twice; it is at rank 0, step 0, too; drop one",
    ),
    "an action alone and in a combination": (
        *(CHAIN, 2, ("0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1B0 1F1 (1F0;1B1)OVERLAP_F_B")),
        "rank 1, step 3: 1F0 is done twice; it is at rank 1, step 0",
    ),
    "an action whole and as nano-batches": (
        *(CHAIN, 1, ("0F0 0F0/2 0B0", "1F0 1B0")),
        "rank 0, step 1: 0F0 is done twice",
    ),
    "a whole backward of nano-batches": (
        *(CHAIN, 1, ("0F0/2 0B0", "1F0 1B0")),
        "rank 0, step 1: 0B0 runs whole and 0F0 runs as 2 nano-batches; give all of a stage's actions on one micr",
    ),
    "another number of nano-batches in a combination": (
        *(CHAIN, 2, ("0F0/2 0F1 0I0/2 (0B1;0W0/3)OVERLAP", "1F0 1F1 1B0 1B1")),
        "rank 0, step 3: 0W0 runs as 3 nano-batches and 0F0 runs as 2 nano-batches",
    ),
    "an operation on a microbatch twice": (
        *(CHAIN, 1, ("0F0 0OFFLOAD0 0OFFLOAD0 0B0", "1F0 1B0")),
        "rank 0, step 2: 0OFFLOAD0 is done twice",
    ),
    "a forward missing": (*(CHAIN, 2, ("0F0 0B0 0F1 0B1", "1F0 1B0 1B1")), "rank 1: 1F1 is missing; add 1F1"),
    "a backward missing": (
        *(CHAIN, 1, ("0F0", "1F0 1B0")),
        "rank 0: 0B0 is missing; add 0B0 (or I and W of it)",
    ),
    "W missing": (*(CHAIN, 1, ("0F0 0I0", "1F0 1B0")), "rank 0: 0W0 is missing"),
    "I missing": (*(CHAIN, 1, ("0F0 0W0", "1F0 1B0")), "rank 0: 0I0 is missing"),
    "a backward whole and split": (
        *(CHAIN, 1, ("0F0 0B0 0W0", "1F0 1B0")),
        "rank 0, step 2: 0W0 is a part of 0B0, which is done, too; have B, or I and W",
    ),
    "a backward before its forward": (
        *(CHAIN, 1, ("0B0 0F0", "1F0 1B0")),
        "rank 0, step 0: 0B0 is in front of 0F0 (step 1); put 0F0 first",
    ),
    "a split backward before its forward": (
        *(CHAIN, 1, ("0I0 0F0 0W0", "1F0 1B0")),
        "rank 0, step 0: 0I0 is in front of 0F0 (step 1)",
    ),
    "W before I": (
        *(CHAIN, 1, ("0F0 0W0 0I0", "1F0 1B0")),
        "rank 0, step 1: 0W0 is in front of 0I0 (step 2); put 0I0 first: W takes what I left",
    ),
    "a combination of a forward and its own backward": (
        *(CHAIN, 1, ("0F0 0B0", "(1F0;1B0)OVERLAP_F_B")),
        "rank 1, step 0: 1B0 needs 1F0, and (1F0;1B0)OVERLAP_F_B runs both together",
    ),
    "a combination of two stages of which one needs the other": (
        *(placement.looped(1, 2), 2, ("(0F0;1F0)OVERLAP 1B0 0B0 0F1 1F1 1B1 0B1",)),
        "rank 0, step 0: 1F0 needs 0F0, and (0F0;1F0)OVERLAP runs both together",
    ),
    "a combination that needs itself through another rank": (
        *(placement.v(2), 1, ("(0F0;3F0)OVERLAP 3B0 0B0", "1F0 2F0 2B0 1B0")),
        (
            "rank 0, step 0: (0F0;3F0)OVERLAP waits for 2F0 on rank 1, step 1 behind 1F0; "
            "rank 1, step 0: 1F0 waits for (0F0;3F0)OVERLAP on rank 0, step 0; on one of these ranks"
        ),
    ),
    "a combination that waits for itself": (
        *(placement.v(2), 1, ("0F0 (0B0;3F0)OVERLAP_F_B 3B0", "1F0 2F0 2B0 1B0")),
        (
            "rank 0, step 1: (0B0;3F0)OVERLAP_F_B waits for 1B0 on rank 1, step 3 behind 2B0; "
            "rank 1, step 2: 2B0 waits for 3B0 on rank 0, step 2 behind (0B0;3F0)OVERLAP_F_B; on one of these ranks"
        ),
    ),
    "a backward before the whole batch is there": (
        *(placement.towers([0], top=[1], batch_wide=True), 2, ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")),
        "rank 1, step 1: 1B0 is in front of 1F1, and the loss of stage 1 needs the whole batch; put every F of stage 1",
    ),
    "a backward together with the last forward of the batch that it needs": (
        *(placement.custom([0], batch_wide=frozenset({0})), 2, ("0F0 (0F1;0B0)OVERLAP_F_B 0B1",)),
        r"rank 0, step 1: (0F1;0B0)OVERLAP_F_B runs together with 0F1, and the loss of stage 0 needs the whole batch",
    ),
    "a send missing": (
        *(CHAIN, 1, ("0F0 0RECV_B0 0B0", SEND[1])),
        "rank 0: 0SEND_F0 is missing, the partner of 1RECV_F0 on rank 1; add it, or have lowered() put",
    ),
    "a receive missing": (
        *(CHAIN, 1, ("0F0 0SEND_F0 0B0", SEND[1])),
        "rank 0: 0RECV_B0 is missing, the partner of 1SEND_B0 on rank 1",
    ),
    "a message missing on both sides": (
        *(CHAIN, 1, ("0F0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0")),
        "rank 0: 0RECV_B0 is missing, while other messages are there",
    ),
    "a message to nobody": (
        *(CHAIN, 1, ("0F0 0SEND_F0 0RECV_B0 0B0 0SEND_B0", SEND[1])),
        "rank 0, step 4: 0SEND_B0 has no partner: no stage on another rank takes it; drop it",
    ),
    "a message on one rank": (
        *(placement.v(2), 1, ("0F0 0SEND_F0 3RECV_F0 3F0", "1RECV_F0 1F0 1SEND_F0 2RECV_F0 2F0 2SEND_F0")),
        "rank 1, step 2: 1SEND_F0 has no partner",
    ),
    "a gradient received in a forward-only schedule": (
        *(CHAIN, 1, ("0F0 0SEND_F0 0RECV_B0", "1RECV_F0 1F0")),
        "rank 0, step 2: 0RECV_B0 has no partner: the schedule has no backward",
    ),
    "a send before it is computed": (
        *(CHAIN, 1, ("0SEND_F0 0F0 0RECV_B0 0B0", SEND[1])),
        "rank 0, step 0: 0SEND_F0 is in front of 0F0 (step 1); put 0F0 first: it can only send what is computed",
    ),
    "a gradient sent before it is computed": (
        *(CHAIN, 1, (SEND[0], "1RECV_F0 1F0 1SEND_B0 1I0 1W0")),
        "rank 1, step 2: 1SEND_B0 is in front of 1I0 (step 3)",
    ),
    "a receive behind what needs it": (
        *(CHAIN, 1, (SEND[0], "1F0 1RECV_F0 1B0 1SEND_B0")),
        "rank 1, step 0: 1F0 is in front of 1RECV_F0 (step 1); put 1RECV_F0 first: it has to be posted",
    ),
    "messages taken in another order": (
        *(CHAIN, 2, ("0F0 0SEND_F0 0F1 0SEND_F1", "1RECV_F1 1RECV_F0 1F0 1F1")),
        "rank 0, step 3: 0SEND_F1 comes behind 0SEND_F0, and on rank 1 1RECV_F1 (step 0) in front of 1RECV_F0 (step 1)",
    ),
    "ranks that wait for each other": (
        *(CHAIN, 2, ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")),
        (
            "rank 0, step 1: deadlock, these wait for each other: rank 0, step 1: 0B0 waits for 1B0 on rank 1, step 2 "
            "behind 1F1; rank 1, step 1: 1F1 waits for 0F1 on rank 0, step 2 behind 0B0; on one of these ranks"
        ),
    ),
    "a send that stands behind what waits for the answer": (
        *(CHAIN, 1, ("0F0 0RECV_B0 0B0 0SEND_F0", SEND[1])),
        "rank 0, step 2: 0B0 waits for 1SEND_B0 on rank 1, step 3 behind 1F0; rank 1, step 1: 1F0 waits for 0SEND_F0",
    ),
    "a rank that waits for itself": (
        *(placement.looped(1, 2), 1, ("1F0 0F0 1B0 0B0",)),
        "rank 0, step 0: 1F0 waits for 0F0 on rank 0, step 1 behind 1F0; on one of these ranks",
    ),
    "a stage used before it is unsharded": (
        *(CHAIN, 1, ("0F0 0UNSHARD 0B0", "1F0 1B0")),
        "rank 0, step 0: 0F0 needs the parameters of stage 0, which are not unsharded yet; put 0UNSHARD in front",
    ),
    "a stage used after it is resharded": (
        *(CHAIN, 1, ("0UNSHARD 0F0 0RESHARD 0B0", "1F0 1B0")),
        "rank 0, step 3: 0B0 needs the parameters of stage 0, which are resharded already",
    ),
    "a combination between two unshards": (
        *(
            placement.looped(1, 2),
            2,
            ("0UNSHARD 0F0 0F1 0RESHARD 1F0 (1B0;1F1)OVERLAP_F_B 0UNSHARD 1B1 0B1 0RESHARD 0B0",),
        ),
        "rank 0, step 10: 0B0 needs the parameters of stage 0, which are resharded already",
    ),
    "unsharded twice": (
        *(CHAIN, 1, ("0UNSHARD 0F0 0UNSHARD 0B0", "1F0 1B0")),
        "rank 0, step 2: 0UNSHARD finds the parameters unsharded already; drop it, or put 0RESHARD in front",
    ),
    "resharded first": (
        *(CHAIN, 1, ("0RESHARD 0F0 0B0", "1F0 1B0")),
        "rank 0, step 0: 0RESHARD finds the parameters sharded already; drop it, or put 0UNSHARD in front",
    ),
    "gradients reduced too early": (
        *(CHAIN, 2, ("0F0 0F1 0B0 0REDUCE_GRAD 0I1 0W1", "1F0 1B0 1F1 1B1")),
        "rank 0, step 3: 0REDUCE_GRAD is in front of 0W1 (step 5); put it behind the last backward of stage 0",
    ),
    "gradients reduced twice": (
        *(CHAIN, 1, ("0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD", "1F0 1B0")),
        "rank 0, step 3: 0REDUCE_GRAD is done twice; it is at step 2, too",
    ),
    "gradients reduced without a backward": (
        *(CHAIN, 1, ("0F0", "1F0 1REDUCE_GRAD")),
        "rank 1, step 1: 1REDUCE_GRAD has no gradients: there is no backward; drop it",
    ),
}


def schedule(where, microbatches, rows):
    return Schedule.of(where, microbatches, [row.split() for row in rows])


@pytest.mark.parametrize("name", BROKEN)
def test_is_refused_with_rank_and_action(name):
    *made, message = BROKEN[name]
    with pytest.raises(ScheduleError, match=re.escape(message)) as raised:
        schedule(*made).check()
    assert re.match(r"rank \d+", str(raised.value))
    assert "\n-> rank" in str(raised.value)


def test_two_ranks_that_send_to_each_other_first_are_refused_for_a_transport_that_waits():
    both = (
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    )
    found = schedule(CHAIN, 2, both)
    found.check()
    message = (
        "rank 0, step 4: 0RECV_B0 comes behind 0SEND_F1, and on rank 1 1SEND_B0 (step 3) in front of 1RECV_F1 (step 4)"
    )
    with pytest.raises(ScheduleError, match=re.escape(message)):
        found.check(rendezvous=True)
    found.lowered().check(rendezvous=True)


GPIPE = ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")


def test_memory_that_is_exceeded_is_refused_where_it_is():
    schedule(CHAIN, 2, GPIPE).check(memory=2)
    message = "rank 0, step 1: 0F1 brings the activations kept to 2, and the limit is 1; start fewer forwards"
    with pytest.raises(ScheduleError, match=message):
        schedule(CHAIN, 2, GPIPE).check(memory=1)
    with pytest.raises(ScheduleError, match="rank 1, step 1: 1F1 brings the activations kept to 6, and the limit is 5"):
        schedule(CHAIN, 2, GPIPE).check(memory=5, costs=table(activation=[1.0, 3.0]))


def test_what_a_weight_gradient_needs_is_kept_until_it_is_done():
    rows = ("0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2",)
    found = schedule(placement.linear(1), 3, rows)
    found.check(memory=1.8, costs=table(kept_for_weight=0.4))
    with pytest.raises(ScheduleError, match=r"rank 0, step 4: 0F2 brings the activations kept to 1\.8"):
        found.check(memory=1.7, costs=table(kept_for_weight=0.4))
    with pytest.raises(ScheduleError, match="step 4: 0F2 brings the activations kept to 3"):
        found.check(memory=2.9)


def test_a_combination_takes_before_it_gives_back():
    found = schedule(placement.linear(1), 2, ("0F0 (0B0;0F1)OVERLAP_F_B 0B1",))
    found.check(memory=2)
    with pytest.raises(ScheduleError, match=r"step 1: \(0B0;0F1\)OVERLAP_F_B brings the activations kept to 2"):
        found.check(memory=1)


def test_three_ranks_whose_messages_wait_for_each_other_in_a_ring_are_refused():
    looped = placement.looped(3, 2)
    lowered = schedule(looped, 2, ("0F0 0F1 3F0 3F1", "1F0 1F1 4F0 4F1", "2F0 2F1 5F0 5F1")).lowered()
    lowered.check(rendezvous=True)
    rows = (
        "0F0 0SEND_F0 0F1 3RECV_F0 0SEND_F1 3F0 3SEND_F0 3RECV_F1 3F1 3SEND_F1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 4RECV_F0 4F0 4SEND_F0 4RECV_F1 4F1 4SEND_F1",
        "2RECV_F0 2F0 2RECV_F1 2SEND_F0 2F1 2SEND_F1 5RECV_F0 5F0 5RECV_F1 5F1",
    )
    found = schedule(looped, 2, rows)
    found.check()
    message = (
        "rank 0, step 3: deadlock where a send waits for its receive, these wait for each other: rank 0, step 3: "
        "3RECV_F0 waits for 2SEND_F0 on rank 2, step 3 behind 2RECV_F1; rank 2, step 2: 2RECV_F1 waits for 1SEND_F1 on "
        "rank 1, step 5 behind 1RECV_F1; rank 1, step 3: 1RECV_F1 waits for 0SEND_F1 on rank 0, step 4 behind 3RECV_F0"
    )
    with pytest.raises(ScheduleError, match=re.escape(message)):
        found.check(rendezvous=True)
    found.lowered().check(rendezvous=True)


def test_forwards_alone_keep_nothing_when_they_end():
    schedule(CHAIN, 2, ("0F0 0F1", "1F0 1F1")).check(memory=1)
    schedule(placement.linear(1), 3, ("0F0 (0F1;0F2)OVERLAP",)).check(memory=2)
    with pytest.raises(ScheduleError, match=r"rank 0, step 1: \(0F1;0F2\)OVERLAP brings the activations kept to 2"):
        schedule(placement.linear(1), 3, ("0F0 (0F1;0F2)OVERLAP",)).check(memory=1)


def test_a_limit_below_nothing_and_costs_of_other_stages_are_refused():
    with pytest.raises(ScheduleError, match="memory=-1: give the activations that a rank may keep"):
        schedule(CHAIN, 2, GPIPE).check(memory=-1)
    with pytest.raises(ScheduleError, match="memory=nan: give"):
        schedule(CHAIN, 2, GPIPE).check(memory=float("nan"))
    with pytest.raises(ScheduleError, match="memory='5': give"):
        schedule(CHAIN, 2, GPIPE).check(memory="5")
    with pytest.raises(CostError, match="costs is 5; make them"):
        schedule(CHAIN, 2, GPIPE).check(memory=1, costs=5)
    with pytest.raises(CostError, match="activation has 1 entries"):
        schedule(CHAIN, 2, GPIPE).check(memory=1, costs=table(activation=[1.0]))


LEGAL = {
    "forward only": (CHAIN, 2, ("0F0 0F1", "1F0 1F1")),
    "forward only with messages": (CHAIN, 1, ("0F0 0SEND_F0", "1RECV_F0 1F0")),
    "whole and split backwards of one stage": (CHAIN, 2, ("0F0 0F1 0B0 0I1 0W1", "1F0 1I0 1F1 1B1 1W0")),
    "more ranks than microbatches": (placement.linear(3), 1, ("0F0 0B0", "1F0 1B0", "2F0 2B0")),
    "copies of which one sees no microbatch": (placement.bidirectional(2), 1, ("0F0 0B0", "1F0 1B0")),
    "operations, with a microbatch or several times without": (
        *(CHAIN, 1, ("0SYNC 0F0 0OFFLOAD0 0SYNC 0B0 0OPTIMIZER", "1F0 1B0 1OPTIMIZER")),
    ),
    "nano-batches and combinations of them": (
        *(CHAIN, 2, ("0F0/2 (0F1/3;0I0/2)OVERLAP_F_B (0B1/3;0W0/2)OVERLAP", "1F0 1B0 1F1 1B1")),
    ),
    "unsharded, used, resharded, twice": (
        *(CHAIN, 1, ("0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0 0REDUCE_GRAD 0RESHARD", "1F0 1B0")),
    ),
    "one stage of several unsharded": (placement.looped(1, 2), 1, ("0F0 1UNSHARD 1F0 1B0 1RESHARD 0B0",)),
}


@pytest.mark.parametrize("name", LEGAL)
def test_is_accepted(name):
    schedule(*LEGAL[name]).check()


def test_a_program_that_is_large_is_shown_around_the_place_only():
    rows = [[f"{rank}{kind}{k}" for kind in "FB" for k in range(100)] for rank in range(40)]
    rows[30][150] = "30F7"
    with pytest.raises(ScheduleError, match="rank 30, step 150: 30F7 is done twice") as raised:
        check(Programs.of(placement.linear(40), 100, rows))
    shown = str(raised.value).splitlines()[2:]
    assert len(shown) <= 13
    assert max(map(len, shown)) <= 120
    assert any("30F7" in line and line.startswith("-> rank 30") for line in shown)


def test_what_one_receive_takes_from_a_rank_is_sent_in_the_order_of_stages():
    where = placement.custom([0, 0, 1], [(0, 2), (1, 2)])
    schedule(where, 1, ("1F0 0F0 0SEND_F0 1SEND_F0", "2RECV_F0 2F0")).check()
    with pytest.raises(ScheduleError, match=r"rank 0, step 3: 0SEND_F0 comes behind 1SEND_F0, and on rank 1 2RECV_F0"):
        schedule(where, 1, ("1F0 0F0 1SEND_F0 0SEND_F0", "2RECV_F0 2F0")).check()
