import re

import pytest

import annopipe as ap
from annopipe.errors import ScheduleError
from annopipe.scheduling.library import entry
from tests.scheduling.torch_schedules import torch_order

NEEDS_EVEN = ("dualpipe", "chimera")
COUNTS = [(ranks, microbatches) for ranks in (1, 2, 3, 4, 5, 8) for microbatches in (1, 2, 3, 5, 8, 16)]


def test_every_schedule_of_the_design_is_there():
    named = (
        "naive gpipe 1f1b eager-1f1b interleaved-1f1b looped-bfs zb-h1 zb-h2 interleaved-zb zbv v-half v-min dualpipe "
        "dualpipev chimera wave forward-only"
    )
    assert set(named.split()) <= set(ap.schedules())


@pytest.mark.parametrize("name", ap.schedules())
def test_any_number_of_ranks_and_microbatches_is_a_whole_step_that_ends(name):
    for ranks, microbatches in COUNTS:
        if (name in NEEDS_EVEN and ranks % 2) or (name == "distmm-pipe" and ranks < 3):
            continue
        schedule = ap.schedule(name, ranks=ranks, microbatches=microbatches)
        schedule.check()
        schedule.lowered(parameters=True).check(rendezvous=True)
        assert schedule.name == name


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("name", ["interleaved-1f1b", "looped-bfs", "interleaved-zb", "wave"])
def test_any_number_of_chunks_works(name, chunks):
    for ranks, microbatches in COUNTS:
        schedule = ap.schedule(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
        schedule.check()
        assert schedule.placement.stages == ranks * chunks


@pytest.mark.parametrize("name", NEEDS_EVEN)
def test_two_directions_need_an_even_number_of_ranks(name):
    with pytest.raises(ScheduleError, match=f"{name}: ranks=3: .* need an even number of ranks"):
        ap.schedule(name, ranks=3, microbatches=4)


def test_towers_are_given_as_ranks_of_each():
    schedule = ap.schedule("distmm-pipe", ranks=6, microbatches=4, towers=(3, 2))
    assert schedule.placement.edges == ((0, 1), (1, 2), (2, 5), (3, 4), (4, 5))
    first_backward = next(step for step, action in enumerate(schedule.ranks[5]) if action.kind == "B")
    assert [str(action) for action in schedule.ranks[5][:first_backward]] == ["5F0", "5F1", "5F2", "5F3"]
    with pytest.raises(ScheduleError, match=r"towers=\(3, 3\), ranks=6: give the ranks of two towers or more"):
        ap.schedule("distmm-pipe", ranks=6, microbatches=4, towers=(3, 3))
    with pytest.raises(ScheduleError, match="ranks=2: two towers and the stage in which they meet need 3 or more"):
        ap.schedule("distmm-pipe", ranks=2, microbatches=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "1f2b"}, "there is no schedule '1f2b'; did you mean 1f1b? the library has naive, gpipe, 1f1b"),
        ({"name": None}, "there is no schedule None"),
        ({"ranks": 0}, "1f1b: ranks=0: give a whole number, 1 or more"),
        ({"microbatches": True}, "1f1b: microbatches=True: give a whole number"),
        ({"microbatches": 2.0}, "1f1b: microbatches=2.0: give a whole number"),
        ({"chunks": 2}, "1f1b has no option 'chunks'; its options are: none"),
        ({"name": "zbv", "costs": 3}, "costs is 3"),
        ({"name": "wave", "chunks": 0}, "chunks=0: give a whole number, 1 or more"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        ap.schedule(**{"name": "1f1b", "ranks": 2, "microbatches": 2, **arguments})


@pytest.mark.parametrize(
    "torch_name",
    ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"],
)
def test_the_class_names_of_pytorch_are_aliases(torch_name):
    assert entry(torch_name) is entry(f"Schedule{torch_name}") is entry(torch_name.lower())


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 12), (8, 16)])
@pytest.mark.parametrize(
    ("name", "torch_name", "chunks"),
    [
        ("gpipe", "ScheduleGPipe", 1),
        ("1f1b", "Schedule1F1B", 1),
        ("interleaved-1f1b", "ScheduleInterleaved1F1B", 2),
        ("interleaved-1f1b", "ScheduleInterleaved1F1B", 3),
        ("looped-bfs", "ScheduleLoopedBFS", 2),
        ("zbv", "ScheduleZBVZeroBubble", 2),
        ("dualpipev", "ScheduleDualPipeV", 2),
    ],
)
def test_the_order_is_that_of_pytorch(name, torch_name, chunks, ranks, microbatches):
    options = {"chunks": chunks} if dict(entry(name).options).get("chunks") else {}
    ours = ap.schedule(name, ranks=ranks, microbatches=microbatches, **options).programs.texts()
    assert ours == torch_order(torch_name, ranks, chunks, microbatches)


def test_costs_change_what_schedules_by_rules_do():
    even = ap.schedule("zb-h2", ranks=4, microbatches=8)
    uneven = ap.schedule("zb-h2", ranks=4, microbatches=8, costs=ap.costs.table(F=1, I=3, W=0.5))
    assert even != uneven
    phases = ap.schedule("zb-h1", ranks=4, microbatches=8)
    assert phases == ap.schedule("zb-h1", ranks=4, microbatches=8, costs=ap.costs.table(F=1, I=3, W=0.5))


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 24)])
def test_chimera_has_its_published_order_whatever_the_costs(ranks, microbatches):
    slow = ap.costs.table(F=2, latency=0.5)
    plain = ap.schedule("chimera", ranks=ranks, microbatches=microbatches)
    assert ap.schedule("chimera", ranks=ranks, microbatches=microbatches, costs=slow) == plain


@pytest.mark.parametrize("name", ["zb-h2", "interleaved-zb", "v-half", "v-min"])
def test_limits_of_memory_are_in_the_unit_of_the_costs(name):
    plain = ap.schedule(name, ranks=4, microbatches=12)
    for activation in (0.5, 3e9, [0.25] * plain.placement.stages):
        assert ap.schedule(name, ranks=4, microbatches=12, costs=ap.costs.table(activation=activation)) == plain


def test_with_stages_of_different_size_each_rank_holds_as_many_microbatches():
    costs = ap.costs.table(activation=[1, 2, 3, 4, 1, 1, 1, 1])
    spec = ap.schedule_spec("v-half", ranks=4, microbatches=12, costs=costs)
    assert spec.memory == (6.0, 9.0, 12.0, 15.0)
    assert all(peak <= limit for peak, limit in zip(ap.simulate(spec.build(), costs).peaks, spec.memory, strict=True))


@pytest.mark.parametrize("name", ap.schedules())
def test_a_specification_is_a_value(name):
    ranks = 4
    spec = ap.schedule_spec(name, ranks=ranks, microbatches=6)
    again = ap.schedule_spec(name, ranks=ranks, microbatches=6)
    assert spec == again
    assert repr(spec) == repr(again)
    assert spec.build() == again.build()
    assert spec.varied(microbatches=7) != spec
    known = entry(name)
    assert known.summary.endswith(".")
    assert known.use
    assert known.source
