import re

import pytest

import annopipe as ap
from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.generation.explaining import Decision, ReadyAction
from annopipe.scheduling.spec import ScheduleSpec

NAMES = [name for name in ap.schedules() if name != "distmm-pipe"]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_explained_as_it_is_built(name):
    spec = ap.schedule_spec(name, ranks=2, microbatches=3)
    timeline = ap.simulate(spec.build(), spec.costs)
    for rank, actions in enumerate(spec.build().ranks):
        for step, action in enumerate(actions):
            decision = spec.explain(rank, step)
            assert (decision.rank, decision.step, decision.chosen) == (rank, step, str(action))
            assert decision.why
            if spec.phases:
                assert (decision.time, decision.candidates) == (None, ())
                continue
            assert decision.time == timeline.spans[rank][step].start
            free = [candidate.action for candidate in decision.candidates if not candidate.refused]
            assert free[0] == str(action)
            assert list(decision.candidates) == sorted(decision.candidates)


def test_a_step_after_idling_is_explained_when_it_begins():
    decision = ap.schedule_spec("1f1b", ranks=2, microbatches=3).explain(0, 2)
    assert str(decision) == (
        "rank 0, step 2, time 4: 0B0\n"
        "B is the most urgent kind that may run; it is its turn\n"
        "before, the rank was idle for 2: it waited for 1B0 of rank 1\n"
        "  0B0  urgency 0  turn   0  ready\n"
        "  0F2  urgency 1  turn   2  over the limit: 2 of 2 in flight; what is begun must be finished"
    )


def test_a_combination_is_explained_with_both_parts():
    spec = ScheduleSpec(placement.linear(1), 2, pair=("F", "B"), in_flight=1)
    decision = spec.explain(0, 1)
    assert decision.chosen == "(0F1;0B0)OVERLAP_F_B"
    assert decision.why == "both are ready, and the rules pair them"
    assert decision.candidates == (ReadyAction(0, 0, "0B0"), ReadyAction(1, 1, "0F1"))


def test_strict_kinds_are_listed_first():
    decision = ScheduleSpec(placement.linear(1), 2, in_order=(("F", "-k"),)).explain(0, 1)
    assert decision.candidates == (
        ReadyAction(0, 0, "0F0"),
        ReadyAction(1, 1, "0B1"),
    )
    first = ScheduleSpec(placement.linear(1), 2, in_order=(("F", "-k"),)).explain(0, 0)
    assert first.candidates[0].refused == "must wait: 0F1 is next in the strict order"


def test_a_step_of_a_phase_is_counted_in_it():
    spec = ap.schedule_spec("zb-h1", ranks=2, microbatches=4)
    assert [str(action) for action in spec.build().ranks[0]][2:5] == ["0I0", "0W0", "0F2"]
    assert str(spec.explain(0, 3)) == (
        "rank 0, step 3: 0W0\nthe order is written in phases: this is step 2 of 6 of the phase 'm - p : I W F'"
    )


def test_operations_are_not_counted_as_steps():
    recompute = ap.schedule_spec("1f1b", 2, 2).varied(operations=(ap.Operation("RECOMPUTE", before="B"),))
    assert [str(action) for action in recompute.build().ranks[1]][:3] == ["1F0", "1RECOMPUTE0", "1B0"]
    assert recompute.explain(1, 1).chosen == "1B0"


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("rank", "step", "message"),
    [
        (2, 0, "there is no rank 2; ranks are 0 to 1"),
        (-1, 0, "there is no rank -1"),
        (0.0, 0, "there is no rank 0.0"),
        (True, 0, "there is no rank True"),
        (1, 4, "rank 1 has no step 4; its steps are 0 to 3"),
        (1, -1, "rank 1 has no step -1"),
        (1, True, "rank 1 has no step True"),
        (1, None, "rank 1 has no step None"),
    ],
)
def test_places_that_are_not_there_are_refused(name, rank, step, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        ap.schedule_spec(name, ranks=2, microbatches=2).explain(rank, step)


def test_a_rank_may_have_nothing_to_do():
    alone = placement.Placement((0, 1), (), (0, 0), (0, 1))
    with pytest.raises(ScheduleError, match="rank 1 has no step 0; it does nothing"):
        ScheduleSpec(alone, 1).explain(1, 0)


def test_a_decision_without_candidates_is_two_lines():
    assert str(Decision(1, 2, None, "1F0", "because")) == "rank 1, step 2: 1F0\nbecause"


def test_an_idle_rank_is_told_for_what_it_waited():
    for name in ("1f1b", "gpipe"):
        decision = ap.schedule_spec(name, ranks=2, microbatches=2).explain(1, 0)
        assert (decision.idle, decision.waited_for) == (1.0, "0F0 of rank 0")
    rules = ScheduleSpec(placement.linear(2), 2, in_flight="p - r", costs=ap.costs.table(latency=0.5))
    assert "waited for 0F0 of rank 0, whose message took 0.5" in str(rules.explain(1, 0))
    assert rules.explain(0, 1).waited_for == ""
