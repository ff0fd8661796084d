"""Layouts against the published loops, written plainly."""

import pytest

import annopipe as ap
from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.generation.phased import phased_rank, phased_ranks
from annopipe.scheduling.spec import ScheduleSpec
from tests.scheduling.generation.specs import texts


class Loop:
    """One rank of a published loop with two directions: each has a stage, and microbatches from a first one."""

    def __init__(self, stages, first=(0, 0)):
        self.stages, self.first = stages, first
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.queue, self.done = [], []

    def forward(self, way):
        self.done.append(self.next_forward(way))

    def backward(self, way, zero_bubble=False):
        self.done.append(self.next_backward(way, zero_bubble))

    def together(self, forward, backward):
        self.done.append(f"({self.next_forward(forward)};{self.next_backward(backward)})OVERLAP_F_B")

    def weight(self):
        self.done.append(self.queue.pop(0))

    def next_forward(self, way):
        self.forwards[way] += 1
        return f"{self.stages[way]}F{self.first[way] + self.forwards[way] - 1}"

    def next_backward(self, way, zero_bubble=False):
        text = f"{self.stages[way]}{'I' if zero_bubble else 'B'}{self.first[way] + self.backwards[way]}"
        self.backwards[way] += 1
        if zero_bubble:
            self.queue.append(text.replace("I", "W"))
        return text


def eight_steps(loop, length, place, chunks):
    """DualPipe's steps for a rank at a place from the end where its first direction begins, of `length` such places."""
    is_middle = place == length - 1
    for _ in range((length - place - 1) * 2):  # 1: nF0
        loop.forward(0)
    for _ in range(place + 1):  # 2: nF0F1
        loop.forward(0)
        loop.forward(1)
    for _ in range(length - place - 1):  # 3: nB1W1F1
        loop.backward(1, zero_bubble=True)
        loop.weight()
        loop.forward(1)
    for i in range(chunks - length * 2 + place + 1):  # 4: nF0B1F1B0
        if i == 0 and is_middle:
            loop.forward(0)
            loop.backward(1)
        else:
            loop.together(0, 1)
        loop.together(1, 0)
    for _ in range(length - place - 1):  # 5: nB1F1B0
        loop.backward(1)
        loop.together(1, 0)
    zero_bubble, count = False, place + 1
    for i in range(count):  # 6: nB1B0
        if i == count // 2 and place % 2 == 1:
            zero_bubble = True
        loop.backward(1, zero_bubble)
        if i == count // 2 and place % 2 == 0:
            zero_bubble = True
        loop.backward(0, zero_bubble)
    for _ in range(length - place - 1):  # 7: nWB0
        loop.weight()
        loop.backward(0, zero_bubble=True)
    for _ in range(place + 1):  # 8: nW
        loop.weight()
    assert not loop.queue
    return loop.done


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (2, 10), (4, 8), (4, 12), (6, 12), (8, 20)])
def test_dualpipe_is_the_published_loop(ranks, microbatches):
    half = microbatches // 2
    for rank, found in enumerate(texts(ap.schedule("dualpipe", ranks=ranks, microbatches=microbatches))):
        place = min(rank, ranks - 1 - rank)
        stages, first = (rank, 2 * ranks - 1 - rank), (0, half)
        if rank >= ranks // 2:
            stages, first = stages[::-1], first[::-1]
        assert found == eight_steps(Loop(stages, first), ranks // 2, place, half)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 2), (1, 5), (2, 4), (3, 6), (3, 7), (4, 8), (5, 13)])
def test_dualpipev_is_the_published_loop(ranks, microbatches):
    for rank, found in enumerate(texts(ap.schedule("dualpipev", ranks=ranks, microbatches=microbatches))):
        stages = (rank, 2 * ranks - 1 - rank)
        assert found == eight_steps(Loop(stages), ranks, rank, microbatches)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 5), (4, 3), (4, 4), (5, 9)])
def test_1f1b_by_rules_is_the_loop_of_three_parts(ranks, microbatches):
    for rank, found in enumerate(texts(ap.schedule("1f1b", ranks=ranks, microbatches=microbatches))):
        warm_up = min(ranks - rank - 1, microbatches)
        expected = [f"{rank}F{k}" for k in range(warm_up)]
        for k in range(microbatches - warm_up):
            expected += [f"{rank}F{k + warm_up}", f"{rank}B{k}"]
        expected += [f"{rank}B{k}" for k in range(microbatches - warm_up, microbatches)]
        assert found == expected


@pytest.mark.parametrize("name", ["zb-h1", "zbv", "dualpipev", "interleaved-1f1b", "dualpipe"])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 7])
def test_few_microbatches_are_the_order_of_many_without_the_others(name, microbatches):
    few = ap.schedule_spec(name, ranks=4, microbatches=microbatches)
    wanted = {"zb-h1": 4, "zbv": 7, "dualpipev": 8, "dualpipe": 8, "interleaved-1f1b": -(-microbatches // 4) * 4}[name]
    many = few.varied(microbatches=max(wanted, microbatches))
    where = few.placement

    def kept(action):
        if action.parts:
            parts = [part for part in map(kept, action.parts) if part]
            return overlap(*parts) if len(parts) > 1 else parts[0] if parts else None
        k = where.microbatches_of(action.stage, many.microbatches).index(action.microbatch)
        present = where.microbatches_of(action.stage, microbatches)
        return Action(action.kind, action.stage, present[k]) if k < len(present) else None

    expected = [[found for action in actions if (found := kept(action))] for actions in phased_ranks(many)]
    assert phased_ranks(few) == expected
    few.build().check()


def test_phases_without_a_backward_are_for_a_priority_without_one():
    spec = ScheduleSpec(placement.linear(2), 3, priority=("F",), phases=("m : F",))
    assert texts(spec.build()) == [["0F0", "0F1", "0F2"], ["1F0", "1F1", "1F2"]]
    spec.build().check()
    with pytest.raises(ScheduleError, match="rank 0: the phases end and 0B0 is not done"):
        spec.varied(priority=("B", "F")).build()


def test_a_layout_for_too_many_is_refused():
    spec = ScheduleSpec(placement.linear(2), 3, phases=("* : F; * : B",), layout_for="m*10000000")
    with pytest.raises(ScheduleError, match=r"layout_for='m\*10000000' is 30000000: on 2 stages these are more than"):
        spec.build()


def test_chunks_are_counted_as_the_model_is_deep():
    spec = ScheduleSpec(placement.custom([0, 0, 1], [(1, 0), (0, 2)]), 1, phases=("* : F0; * : F1; * : B0; * : B1",))
    assert [str(action) for action, _ in phased_rank(spec, 0)] == ["1F0", "0F0", "1B0", "0B0"]


def test_an_order_that_cannot_run_is_found_by_the_check():
    schedule = ScheduleSpec(placement.linear(2), 2, phases=("* : B; * : F",)).build()
    with pytest.raises(ScheduleError, match="rank 0, step 0: 0B0 is in front of 0F0"):
        schedule.check()
