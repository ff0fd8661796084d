"""Whatever a specification says, its schedule is legal and keeps its limits, or it is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import annopipe as ap
from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import Action
from annopipe.scheduling.generation.rules import Rules
from tests.scheduling.generation.reference import Reference, StopsError
from tests.scheduling.generation.specs import calm, specs, text_of, texts


def built(spec):
    """The schedule; None when the specification is refused, with the rank that cannot go on."""
    try:
        return spec.build()
    except ScheduleError as error:
        if "rank " not in str(error) and "operation" not in str(error):
            raise
        return None


@settings(calm, max_examples=120)
@given(specs())
def test_what_is_built_is_a_whole_step_that_ends(spec):
    schedule = built(spec)
    if schedule is None:
        return
    schedule.check()
    schedule.lowered().check(rendezvous=True)
    ap.simulate(schedule, spec.costs)


@settings(calm, max_examples=120)
@given(specs())
def test_limits_are_kept(spec):
    schedule = built(spec)
    if schedule is None or not spec.has_backward:
        return
    rules = Rules.of(spec)
    for rank, actions in enumerate(schedule.ranks):
        of_stage = dict.fromkeys(spec.placement.stages_on[rank], 0)
        for action in actions:
            for part in action.singles:
                of_stage[part.stage] += {"F": 1, "B": -1, "I": -1}.get(part.kind, 0)
            assert sum(of_stage.values()) <= (rules.in_flight[rank] or sum(of_stage.values()))
            for stage, count in of_stage.items():
                assert count <= (rules.stage_in_flight[stage] or count)
    peaks = ap.simulate(schedule, spec.costs).activations
    for peak, limit in zip(peaks, rules.memory, strict=True):
        assert limit is None or peak <= limit + 1e-6
    if isinstance(spec.memory, float):
        # What runs beside the computation is taken to be done where it stands, so this is no more than the above.
        schedule.check(memory=spec.memory, costs=spec.costs)


@settings(calm, max_examples=200)
@given(specs(operations=False))
def test_the_obvious_generator_agrees(spec):
    try:
        Rules.of(spec)
    except ScheduleError:
        return
    reference = Reference(spec)
    try:
        expected = reference.run()
    except StopsError:
        with pytest.raises(ScheduleError, match=r"rank \d+ stops at step \d+: .* and no other rank can go on"):
            spec.build()
        return
    schedule = spec.build()
    assert texts(schedule) == [[text_of(actions) for _, actions in rank] for rank in expected]


@settings(calm, max_examples=120)
@given(specs(operations=False))
def test_the_simulation_has_the_times_of_the_generator_where_no_message_waits_for_its_link(spec):
    schedule = built(spec)
    if schedule is None:
        return
    timeline = ap.simulate(schedule, spec.costs)
    ends = {text: span.end for row in timeline.spans for span in row for text in (span.parts or (span.text,))}
    for message in timeline.messages:
        sent = Action.parse(message.text)
        made = [f"{sent.stage}{kind}{sent.microbatch}" for kind in ("F" if sent.kind == "SEND_F" else "BI")]
        if message.start > max(ends.get(text, 0.0) for text in made) + 1e-9:
            return
    expected = Reference(spec).run()
    for row, rank in zip(timeline.spans, expected, strict=True):
        assert [span.start for span in row] == pytest.approx([float(time) for time, _ in rank])


@settings(calm, max_examples=120)
@given(specs(operations=False), st.data())
def test_a_decision_says_what_is_built(spec, data):
    schedule = built(spec)
    if schedule is None:
        return
    rank = data.draw(st.sampled_from([rank for rank, actions in enumerate(schedule.ranks) if actions]))
    step = data.draw(st.integers(0, len(schedule.ranks[rank]) - 1))
    decision = spec.explain(rank, step)
    assert decision.chosen == str(schedule.ranks[rank][step])
    time, _ = Reference(spec).run()[rank][step]
    assert decision.time == pytest.approx(float(time))
