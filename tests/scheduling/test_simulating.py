import pytest
from hypothesis import given
from hypothesis import strategies as st

import annopipe as ap
from annopipe.errors import CostError, ScheduleError
from annopipe.scheduling.actions import Action
from annopipe.scheduling.operations import Operation, insert_operations
from annopipe.scheduling.programs import Programs
from tests.scheduling.longest_paths import LongestPaths, keys
from tests.scheduling.random_schedules import costs_for, schedules, with_messages


def one_f_one_b(ranks: int, microbatches: int) -> ap.Schedule:
    """Warm-up of ranks - rank forwards, then one backward and one forward in turns."""
    programs = []
    for rank in range(ranks):
        warm_up = min(ranks - rank, microbatches)
        program = [f"{rank}F{m}" for m in range(warm_up)]
        for m in range(microbatches):
            program.append(f"{rank}B{m}")
            if m + warm_up < microbatches:
                program.append(f"{rank}F{m + warm_up}")
        programs.append(program)
    return ap.Schedule.of(ap.placement.linear(ranks), microbatches, programs, "1f1b")


def pairs(timeline: ap.Timeline) -> list[list[tuple[str, float, float]]]:
    return [[(span.text, span.start, span.end) for span in spans] for spans in timeline.spans]


@given(st.data())
def test_every_time_is_the_longest_path_to_it(data):
    schedule = data.draw(schedules())
    costs = data.draw(costs_for(schedule))
    timeline, reference = ap.simulate(schedule, costs), LongestPaths(schedule, costs)
    assert pairs(timeline) == reference.spans()
    assert sorted((m.sender, m.receiver, m.start, m.sent) for m in timeline.messages) == reference.messages()
    assert all(message.arrival == message.sent + costs.latency for message in timeline.messages)


@given(st.data())
def test_written_messages_change_nothing_when_they_stand_where_results_are_made(data):
    schedule = data.draw(schedules())
    costs = data.draw(costs_for(schedule))
    implied, written = ap.simulate(schedule, costs), ap.simulate(with_messages(schedule), costs)
    assert implied.to_json() == written.to_json()


@given(st.data())
def test_memory_is_what_forwards_leave_and_backwards_free(data):
    schedule = data.draw(schedules())
    costs = data.draw(costs_for(schedule))
    timeline = ap.simulate(schedule, costs)
    frees = {"B": 1.0, "I": 1.0 - costs.kept_for_weight, "W": costs.kept_for_weight}
    has_backward = any(kind != "F" for actions in schedule.ranks for action in actions for kind, _, _ in keys(action))
    for rank, actions in enumerate(schedule.ranks):
        held = peak = 0.0
        for action in actions:
            held += sum(costs.activation_of(stage) for kind, stage, _ in keys(action) if kind == "F")
            peak = max(peak, held)
            held -= sum(costs.activation_of(stage) * frees.get(kind, 0.0) for kind, stage, _ in keys(action))
            held = held if has_backward else 0.0
        assert timeline.activations[rank] == pytest.approx(peak)
        assert held == pytest.approx(0.0)
        assert timeline.memory[rank][-1][1] == pytest.approx(timeline.peaks[rank] - timeline.activations[rank])


def test_1f1b_of_two_ranks_by_hand():
    timeline = ap.simulate(one_f_one_b(2, 2), ap.costs.table(latency=0.25))
    assert pairs(timeline) == [
        [("0F0", 0.0, 1.0), ("0F1", 1.0, 2.0), ("0B0", 4.5, 6.5), ("0B1", 7.5, 9.5)],
        [("1F0", 1.25, 2.25), ("1B0", 2.25, 4.25), ("1F1", 4.25, 5.25), ("1B1", 5.25, 7.25)],
    ]
    assert (timeline.makespan, timeline.window) == (9.5, 9.5)
    assert timeline.busy == (6.0, 6.0)
    assert timeline.exposed == (0.5, 0.25)  # before 0B0 and 0B1, and before 1F0
    assert timeline.peaks == (2.0, 1.0)
    assert [entry.text for entry in timeline.critical_path] == [
        *("0F0", "0SEND_F0", "1F0", "1B0", "1F1", "1B1", "1SEND_B1", "0B1")
    ]


def test_reference_values_with_and_without_latency():
    assert ap.simulate(one_f_one_b(4, 8)).makespan == 33.0
    assert ap.simulate(one_f_one_b(4, 8)).peaks == (4.0, 3.0, 2.0, 1.0)
    assert ap.simulate(one_f_one_b(4, 8), ap.costs.table(latency=0.25)).makespan == 37.0


def test_costs_are_one_unit_each_unless_given():
    schedule = ap.Schedule.of(ap.placement.linear(1), 1, [["0F0", "0I0", "0W0"]])
    assert ap.simulate(schedule).makespan == 3.0


def test_a_pair_takes_what_pairs_take_and_other_combinations_the_sum():
    schedule = ap.Schedule.of(ap.placement.linear(1), 2, [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]])
    assert ap.simulate(schedule, ap.costs.table(FB=2.25)).makespan == 1.0 + 2.25 + 2.0
    split = ap.Schedule.of(ap.placement.linear(1), 2, [["0F0", "0I0", "(0F1;0W0)OVERLAP", "0B1"]])
    assert ap.simulate(split, ap.costs.table(FB=0.0)).makespan == 1.0 + 1.0 + 2.0 + 2.0


def test_operations_take_what_their_kind_costs():
    schedule = ap.Schedule.of(ap.placement.linear(1), 1, [["0UNSHARD", "0F0", "0OFFLOAD0", "0B0", "0REDUCE_GRAD"]])
    costs = ap.costs.table(operations={"UNSHARD": 0.5, "OFFLOAD": [0.25]})
    assert [span.end for span in ap.simulate(schedule, costs).spans[0]] == [0.5, 1.5, 1.75, 3.75, 3.75]
    assert [span.kind for span in ap.simulate(schedule, costs).spans[0]][:3] == ["UNSHARD", "F", "OFFLOAD"]


def test_spans_name_stage_microbatch_chunk_and_parts():
    schedule = ap.Schedule.of(ap.placement.v(1), 1, [["0F0", "1F0/2", "1B0", "0B0"]], "short")
    timeline = ap.simulate(schedule)
    assert [(s.text, s.kind, s.stage, s.microbatch, s.chunk) for s in timeline.spans[0]] == [
        ("0F0", "F", 0, 0, 0),
        ("1F0/2", "F", 1, 0, 1),
        ("1B0", "B", 1, 0, 1),
        ("0B0", "B", 0, 0, 0),
    ]
    assert (timeline.name, timeline.messages) == ("short", ())


def test_a_stage_with_two_successors_elsewhere_sends_to_each():
    place = ap.placement.custom([0, 1, 2], [(0, 1), (0, 2)])
    schedule = ap.Schedule.of(place, 1, [["0F0"], ["1F0"], ["2F0"]])
    messages = ap.simulate(schedule, ap.costs.table(send=0.5)).messages
    assert [(m.text, m.sender, m.receiver, m.start, m.sent) for m in messages] == [
        ("0SEND_F0", 0, 1, 1.0, 1.5),
        ("0SEND_F0", 0, 2, 1.0, 1.5),
    ]


def test_a_send_further_back_leaves_later():
    program = ["0F0", "0F1", "0SEND_F0", "0SEND_F1"]
    schedule = ap.Schedule.of(ap.placement.linear(2), 2, [program, ["1RECV_F0", "1RECV_F1", "1F0", "1F1"]])
    assert pairs(ap.simulate(schedule))[1] == [("1F0", 2.0, 3.0), ("1F1", 3.0, 4.0)]


def test_parameters_that_two_stages_of_a_rank_share_are_kept_once():
    schedule = ap.Schedule.of(ap.placement.bidirectional(3), 1, [["0F0"], ["1F0"], ["2F0"]])
    timeline = ap.simulate(schedule, ap.costs.table(parameters=[1.0, 2.0, 4.0, 1.0, 2.0, 4.0], activation=0.0))
    assert timeline.peaks == (5.0, 2.0, 5.0)


def test_a_forward_without_any_backward_keeps_nothing():
    schedule = ap.Schedule.of(ap.placement.linear(1), 3, [["0UNSHARD", "0F0", "0F1", "(0F2;0F1)OVERLAP"][:3]])
    assert ap.simulate(schedule).activations == (1.0,)


def test_exposed_communication_inside_actions_is_that_of_the_costs():
    schedule = ap.Schedule.of(ap.placement.linear(1), 2, [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]])
    costs = ap.costs.table(exposed={"F": 0.25, "B": 0.5, "FB": 0.125})
    assert ap.simulate(schedule, costs).exposed_comm == 0.25 + 0.125 + 0.5


def test_a_schedule_that_cannot_finish_says_who_waits_for_what():
    schedule = ap.Schedule.of(ap.placement.linear(2), 1, [["0B0", "0F0"], ["1F0", "1B0"]], "wrong")
    with pytest.raises(
        ScheduleError, match=r"(?s)'wrong' cannot finish.*rank 0, step 0: 0B0 waits for 0F0, which rank 0"
    ):
        ap.simulate(schedule)


def test_a_message_that_nobody_sends_is_named():
    schedule = ap.Schedule.of(ap.placement.linear(2), 2, [["0F0", "0SEND_F0", "0F1"], ["1F0", "1F1"]])
    with pytest.raises(ScheduleError, match="rank 1, step 1: 1F1 waits for 0SEND_F1, which no rank does"):
        ap.simulate(schedule)


def test_a_backward_of_a_stage_that_needs_the_whole_batch_waits_for_every_forward():
    place = ap.placement.custom([0], batch_wide=frozenset({0}))
    schedule = ap.Schedule.of(place, 2, [["0F0", "0B0", "0F1", "0B1"]])
    with pytest.raises(ScheduleError, match="0B0 waits for 0F1"):
        ap.simulate(schedule)


def test_costs_of_another_count_of_stages_are_refused():
    with pytest.raises(CostError, match="F has 3 entries and the schedule 2 stages"):
        ap.simulate(one_f_one_b(2, 2), ap.costs.table(F=[1.0, 2.0, 3.0]))


def test_duration_of_an_action_asks_a_function_once():
    asked = []
    costs = ap.costs.table(I=lambda stage, microbatch: asked.append((stage, microbatch)) or 1.0, W=0.5)
    assert costs.duration(Action("B", 1, 7)) == 1.5
    assert asked == [(1, 7)]


def with_operations(*operations: Operation) -> ap.Schedule:
    plain = ap.Schedule.of(ap.placement.linear(1), 2, [["0F0", "0F1", "0B0", "0B1"]])
    programs = plain.programs
    numbering, ranks = insert_operations(plain.placement, programs.numbering, programs.ranks, operations)
    return ap.Schedule(Programs.numbered(plain.placement, numbering, ranks), "offload", operations)


def test_an_operation_on_the_rank_takes_its_time_there():
    timeline = ap.simulate(with_operations(Operation("RECOMPUTE", before="B", time=0.5)))
    assert [(s.text, s.end) for s in timeline.spans[0]][2:] == [
        ("0RECOMPUTE0", 2.5),
        ("0B0", 4.5),
        ("0RECOMPUTE1", 5.0),
        ("0B1", 7.0),
    ]


def test_costs_of_operations_replace_the_time_that_they_came_with():
    schedule = with_operations(Operation("RECOMPUTE", before="B", time=0.5))
    assert ap.simulate(schedule, ap.costs.table(operations={"RECOMPUTE": 1.0})).makespan == 8.0


def test_an_offload_runs_beside_and_what_it_brings_back_is_waited_for():
    schedule = with_operations(
        Operation("OFFLOAD", after="F", time=0.5, resource="copy", memory=-0.75),
        Operation("RELOAD", before="B", time=1.5, resource="copy", memory=0.75),
    )
    timeline = ap.simulate(schedule)
    assert [(s.text, s.start, s.end) for s in timeline.beside[0]] == [
        ("0OFFLOAD0", 1.0, 1.5),
        ("0OFFLOAD1", 2.0, 2.5),
        ("0RELOAD0", 2.5, 4.0),
        ("0RELOAD1", 6.0, 7.5),
    ]
    assert [(s.text, s.start, s.end) for s in timeline.spans[0]][2:] == [("0B0", 4.0, 6.0), ("0B1", 7.5, 9.5)]
    assert timeline.memory[0] == ((0.0, 1.0), (1.0, 2.0), (1.5, 1.25), (6.0, 1.0), (9.5, 0.0))


def test_an_operation_once_per_stage_holds_up_the_first_forward():
    schedule = with_operations(Operation("FETCH", before="F", per="stage", time=3.0, resource="copy"))
    assert [(s.text, s.start) for s in ap.simulate(schedule).spans[0]][:2] == [("0F0", 3.0), ("0F1", 4.0)]


def test_costs_that_are_none_and_times_that_no_number_holds_are_refused():
    written = ap.Schedule.of(ap.placement.linear(1), 1, [["0F0", "0B0"]])
    with pytest.raises(CostError, match="costs is 5; make them with annopipe"):
        ap.simulate(written, 5)
    with pytest.raises(CostError, match="the times add up to more than a number can hold"):
        ap.simulate(written, ap.costs.table(F=1e308, B=1e308))


def test_actions_that_take_no_time_do_not_lengthen_the_window():
    schedule = ap.schedule("zbv", ranks=4, microbatches=8)
    assert schedule.lowered(parameters=True).simulated().window == schedule.simulated().window == 48.0


@pytest.mark.parametrize("rank", [["0F0", "0F0", "0B0"], ["0F0", "0F1", "(0F1;0B0)OVERLAP_F_B", "0B1"]])
def test_an_action_that_is_done_twice_is_refused(rank):
    with pytest.raises(ScheduleError, match=r"rank 0: 0F. is done twice"):
        ap.Schedule.of(ap.placement.linear(1), 2, [rank]).simulated()


def test_a_rank_that_waits_is_named_with_the_step_of_its_schedule():
    stuck = ap.Schedule.of(ap.placement.linear(2), 2, [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B1", "1F1", "1B0"]])
    with pytest.raises(ScheduleError, match=r"rank 0, step 2 \(without messages\): 0B0 waits for"):
        stuck.simulated()
