from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.actions import Action
from annopipe.scheduling.generation.rule_times import RuleTimes
from annopipe.scheduling.numbering import Numbering
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.spec import ScheduleSpec

SPLIT = {"priority": ("B", "I", "F", "W")}
NUMBERING = Numbering(4, 2)


def times(costs, **fields):
    found = RuleTimes(ScheduleSpec(placement.v(2), 2, costs=costs, **SPLIT, **fields))

    def seconds(*texts):
        numbers = [NUMBERING.number(Action.parse(text)) for text in texts]
        return found.seconds(found.combined(*numbers) if numbers[1:] else found.durations[numbers[0]])

    return found, seconds


def test_every_action_has_the_time_of_the_costs():
    costs = table(F=[1, 2, 3, 4], I=lambda stage, microbatch: stage + microbatch / 4, W=0.1, B=7.5)
    _, seconds = times(costs)
    assert [seconds(text) for text in ("3F1", "2I1", "0W0", "1B1")] == [4.0, 2.25, 0.1, 7.5]


def test_tenths_of_a_split_backward_add_up_to_the_whole():
    found, _ = times(table(F=0.3, I=0.1, W=0.2))
    assert found.durations[NUMBERING.first("F")] == found.durations[NUMBERING.first("B")]


def test_messages_take_their_links_and_the_latency_by_stage_and_microbatch():
    found, _ = times(table(send=lambda stage, microbatch: stage + microbatch / 4, latency=0.5))
    assert [found.seconds(delay) for delay in found.delays] == [0.5, 0.75, 1.5, 1.75, 2.5, 2.75, 3.5, 3.75]


def test_a_combination_takes_its_parts_or_what_the_costs_say():
    by_microbatch = table(F=lambda stage, microbatch: 1 + microbatch, B=4)
    assert times(by_microbatch)[1]("0F1", "3B0") == 6.0
    assert times(table(FB=2.5))[1]("0F1", "3B0") == 2.5
    assert times(table(FB=2.5))[1]("0F1", "3W0") == 2.0
    assert times(table(FB=lambda forward, backward: forward + backward / 8), pair=("F", "B"))[1]("0F1", "3B0") == 0.375
    together = table(overlap=lambda action: sum(part.microbatch for part in action.parts) / 3)
    assert times(together)[1]("0F1", "3B1") == 2 / 3
    assert times(together)[1]("0F1", "3B0") == 1 / 3


def test_operations_of_the_rank_belong_to_their_computation():
    before = Operation("RECOMPUTE", before="B", time=0.5, stages=(3,))
    after = Operation("STORE", after="W", time=0.25)
    beside = Operation("OFFLOAD", after="F", time=8.0, resource="copy")
    once = Operation("OPTIMIZER", after="W", time=8.0, per="stage")
    _, seconds = times(table(FB=2.0), operations=(before, after, beside, once))
    assert [seconds(f"3{kind}0") for kind in "FBIW"] == [1.0, 2.75, 1.5, 1.25]
    assert [seconds(f"0{kind}0") for kind in "FBIW"] == [1.0, 2.25, 1.0, 1.25]
    assert seconds("0F1", "3B0") == 2.75


def test_costs_of_operations_replace_their_own_time():
    _, seconds = times(table(operations={"STORE": [1, 2, 3, 4]}), operations=(Operation("STORE", after="F"),))
    assert [seconds(f"{stage}F0") for stage in range(4)] == [2.0, 3.0, 4.0, 5.0]


def test_an_overlap_by_stage_is_asked_once_for_each_two_stages_and_gives_the_same_schedule():
    asked = []

    def seconds(action):
        asked.append(str(action))
        return 1.0 + sum(part.stage for part in action.parts) / 7

    plain = ScheduleSpec(placement.v(2), 6, pair=("F", "B"), costs=table(overlap=seconds))
    once = plain.varied(costs=table(overlap=seconds, overlap_by_stage=True))
    expected = plain.build()
    asked.clear()
    assert once.build() == expected
    assert len(asked) == 2 * 2 * 2  # forwards and backwards of each rank's two stages
