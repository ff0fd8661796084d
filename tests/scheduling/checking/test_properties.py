import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling.checking.checker import check
from annopipe.scheduling.lowering.passes import lower
from annopipe.scheduling.programs import Programs
from tests.scheduling.checking.reference import Reference
from tests.scheduling.legal import legal_programs

calm = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)


@st.composite
def broken(draw):
    """Legal programs, lowered or not, with one thing swapped, moved, dropped or doubled: often still legal."""
    programs = draw(legal_programs())
    lowering = draw(st.sampled_from(["none", "messages", "parameters"]))
    if lowering != "none":
        programs = lower(programs, parameters=lowering == "parameters", rendezvous=draw(st.booleans()))
    rows = [list(program) for program in programs.ranks]
    row = draw(st.sampled_from([row for row in rows if row]))
    step = draw(st.integers(0, len(row) - 1))
    change = draw(st.sampled_from(["swap", "move", "drop", "double", "give"]))
    if change == "swap":
        other = draw(st.integers(max(0, step - 3), min(len(row) - 1, step + 3)))
        row[step], row[other] = row[other], row[step]
    elif change == "double":
        row.insert(draw(st.integers(0, len(row))), row[step])
    else:
        number = row.pop(step)
        if change != "drop":
            to = row if change == "move" else draw(st.sampled_from(rows))
            to.insert(draw(st.integers(0, len(to))), number)
    return Programs.numbered(programs.placement, programs.numbering, rows)


@calm
@given(legal_programs())
def test_what_is_ready_in_any_order_passes(programs):
    check(programs)
    assert not Reference(programs).problems()


@calm
@given(legal_programs(), st.booleans(), st.booleans(), st.integers(1, 4))
def test_whatever_passes_can_be_lowered_and_passes_again(programs, parameters, rendezvous, max_active):
    lowered = lower(programs, parameters=parameters, max_active=max_active, rendezvous=rendezvous)
    assert lower(lowered, parameters=parameters, max_active=max_active, rendezvous=rendezvous) == lowered
    problems = Reference(lowered).problems()
    if rendezvous:
        assert not problems
        check(lowered, rendezvous=True)
    else:
        # Where stages meet, order is what this option gives up.
        assert problems <= {"message_order"}


@settings(calm, max_examples=600)
@given(broken())
def test_a_broken_rule_is_found_exactly_when_the_reference_finds_one(programs):
    problems = Reference(programs).problems()
    if not problems:
        check(programs)
        return
    with pytest.raises(ScheduleError, match=r"^rank \d+"):
        check(programs)


@settings(calm, max_examples=300)
@given(broken())
def test_pairs_agree_exactly_when_both_list_the_same_messages(programs):
    reference = Reference(programs)
    if reference.problems():
        return
    if reference.bad_message_order(pairs=True):
        with pytest.raises(ScheduleError, match="one order"):
            check(programs, rendezvous=True)
    else:
        check(programs, rendezvous=True)


@st.composite
def shuffled(draw):
    """Legal programs with one action moved in the order of its rank."""
    programs = draw(legal_programs(operations=False))
    rows = [list(program) for program in programs.ranks]
    row = draw(st.sampled_from([row for row in rows if row]))
    number = row.pop(draw(st.integers(0, len(row) - 1)))
    row.insert(draw(st.integers(0, len(row))), number)
    return Programs.numbered(programs.placement, programs.numbering, rows)


@settings(calm, max_examples=300)
@given(shuffled())
def test_a_deadlock_names_a_true_cycle(programs):
    reference = Reference(programs)
    if reference.problems() != {"deadlock"} or parts_need_each_other(reference):
        return
    for run in (check, lower):
        with pytest.raises(ScheduleError, match="wait for each other") as raised:
            run(programs)
        found = re.findall(r"(\d+), step (\d+): (\S+) waits for (\S+) on rank (\d+), step (\d+)", str(raised.value))
        waits = [(int(rank), int(step), text, needed, int(on), int(at)) for rank, step, text, needed, on, at in found]
        assert waits
        edges = reference.edges()
        for (rank, step, text, needed, on, at), following in zip(waits, [*waits[1:], waits[0]], strict=True):
            assert (text, needed) == (str(reference.rows[rank][step]), str(reference.rows[on][at]))
            assert (on, at) in edges[rank, step]
            # The next one is what is waited for, or stands in front of it.
            assert following[0] == on
            assert following[1] <= at


def parts_need_each_other(reference):
    return any(place in needed for place, needed in reference.edges().items())
