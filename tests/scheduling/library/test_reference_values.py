"""Makespan, window and memory of the library against an independent simulator's values and the published formulas.

Unit: F = I = W = 1 on 1/p of the model, so a stage of a rank with v stages takes 1/v of it.
"""

import pytest

import annopipe as ap

PAIRS = [(2, 4), (3, 6), (4, 8), (4, 13), (5, 5), (8, 16), (8, 21)]
COSTS = [(1, 1, 1), (1, 2, 1), (2, 1, 3), (3, 2, 2)]


def costs(chunks=1, F=1, I=1, W=1, **more):  # noqa: E741
    return ap.costs.table(F=F / chunks, I=I / chunks, W=W / chunks, activation=1 / chunks, **more)


def simulated(name, table, ranks=4, microbatches=8, **options):
    """The timeline of a schedule that the checker has passed, before and after lowering."""
    schedule = ap.schedule(name, ranks=ranks, microbatches=microbatches, **options)
    schedule.check()
    schedule.lowered().check(rendezvous=True)
    return ap.simulate(schedule, table)


@pytest.mark.parametrize(
    ("name", "chunks", "makespan", "window", "peak"),
    [
        ("naive", 1, 96, 96, 1),
        ("gpipe", 1, 33, 33, 8),
        ("1f1b", 1, 33, 33, 4),
        ("interleaved-1f1b", 2, 28.5, None, 5.5),
        ("interleaved-1f1b", 4, 26.25, None, 4.75),
        ("looped-bfs", 2, 28.5, None, 8),
        ("zb-h1", 1, 27, 27, 4),
        ("interleaved-zb", 2, 25.5, None, 4),
        ("zb-h2", 1, 27, 24, 7),
        ("zbv", 2, 25.5, 24, 4),
        ("v-half", 2, 26.5, None, 3),
        ("v-min", 2, 29.5, None, 2),
    ],
)
def test_four_ranks_and_eight_microbatches(name, chunks, makespan, window, peak):
    looped = name in ("interleaved-1f1b", "looped-bfs", "interleaved-zb")
    timeline = simulated(name, costs(chunks), **({"chunks": chunks} if looped else {}))
    assert timeline.makespan == makespan
    assert timeline.peak_memory == peak
    assert window is None or timeline.window == window
    assert timeline.bubble == pytest.approx(1 - 24 / makespan)


@pytest.mark.parametrize(
    ("name", "chunks", "ranks", "microbatches", "pair", "makespan", "peak"),
    [
        ("dualpipe", 1, 4, 8, 3, 26, 5),
        ("dualpipe", 1, 4, 8, 2, 22, 5),
        ("dualpipe", 1, 8, 20, None, 66, 9),
        ("dualpipe", 1, 8, 16, None, 54, 9),
        ("dualpipev", 2, 4, 8, 1.5, 27, 4.5),
        ("dualpipev", 2, 4, 10, 1.5, 33, 4.5),
    ],
)
def test_combined_forwards_and_backwards(name, chunks, ranks, microbatches, pair, makespan, peak):
    timeline = simulated(name, costs(chunks, FB=pair), ranks, microbatches)
    assert timeline.makespan == makespan
    assert timeline.peak_memory == peak


def test_1f1b_holds_one_microbatch_less_on_each_further_rank():
    assert list(simulated("1f1b", costs()).peaks) == [4, 3, 2, 1]
    assert list(simulated("1f1b", costs(), 4, 3).peaks) == [3, 3, 2, 1]


@pytest.mark.parametrize(("backward", "makespan"), [(1, 10), (2, 16)])
def test_chimera_with_four_ranks_and_microbatches(backward, makespan):
    assert simulated("chimera", ap.costs.table(F=1, B=backward), 4, 4).makespan == makespan


@pytest.mark.parametrize(("name", "makespan"), [("1f1b", 37), ("gpipe", 34.5), ("interleaved-1f1b", 32), ("zb-h1", 30)])
def test_latency_of_a_quarter(name, makespan):
    chunks = 2 if name == "interleaved-1f1b" else 1
    assert simulated(name, costs(chunks, latency=0.25)).makespan == makespan


@pytest.mark.parametrize(("ranks", "microbatches"), PAIRS)
@pytest.mark.parametrize(("F", "I", "W"), COSTS)
class TestClosedForms:
    def test_naive_takes_every_microbatch_through_all_ranks_alone(self, ranks, microbatches, F, I, W):  # noqa: E741
        timeline = simulated("naive", costs(F=F, I=I, W=W), ranks, microbatches)
        assert timeline.makespan == microbatches * ranks * (F + I + W)
        assert timeline.bubble == pytest.approx((ranks - 1) / ranks)
        assert timeline.peak_memory == 1

    @pytest.mark.parametrize("name", ["gpipe", "1f1b"])
    def test_gpipe_and_1f1b_idle_while_the_pipeline_fills_and_drains(self, name, ranks, microbatches, F, I, W):  # noqa: E741
        timeline = simulated(name, costs(F=F, I=I, W=W), ranks, microbatches)
        assert timeline.makespan == (microbatches + ranks - 1) * (F + I + W)
        assert timeline.bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1))
        kept = [microbatches if name == "gpipe" else min(ranks - rank, microbatches) for rank in range(ranks)]
        assert list(timeline.peaks) == kept

    @pytest.mark.parametrize("chunks", [2, 3])
    def test_interleaving_divides_the_bubble_by_the_chunks(self, chunks, ranks, microbatches, F, I, W):  # noqa: E741
        rounds = microbatches // ranks * ranks  # the form holds for whole rounds of the ranks
        timeline = simulated("interleaved-1f1b", costs(chunks, F, I, W), ranks, rounds, chunks=chunks)
        bubble = (ranks - 1) * (F + I + W) / chunks
        assert timeline.makespan == pytest.approx(rounds * (F + I + W) + bubble)
        assert timeline.peak_memory == pytest.approx(min(rounds, ranks + (ranks - 1) / chunks))

    def test_zb_h1_fills_the_bubble_with_weight_gradients(self, ranks, microbatches, F, I, W):  # noqa: E741
        if max(F, I, W) > min(F, I, W) * 2 or microbatches < 2 * ranks:
            pytest.skip("the form is for passes of similar length and a steady state")
        timeline = simulated("zb-h1", costs(F=F, I=I, W=W), ranks, microbatches)
        assert timeline.window == microbatches * (F + I + W) + (ranks - 1) * max(F + I - W, 0)
        assert timeline.peak_memory == ranks


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 12), (6, 13), (8, 16)])
class TestEqualPasses:
    def test_zb_h2_leaves_no_bubble_in_the_window(self, ranks, microbatches):
        timeline = simulated("zb-h2", costs(), ranks, microbatches)
        assert timeline.window == 3 * microbatches
        assert timeline.makespan == 3 * microbatches + ranks - 1
        assert timeline.peak_memory == 2 * ranks - 1

    def test_zbv_leaves_no_bubble_in_the_window(self, ranks, microbatches):
        timeline = simulated("zbv", costs(2), ranks, microbatches)
        assert timeline.window == 3 * microbatches
        assert timeline.makespan == 3 * microbatches + (ranks - 1) / 2
        assert timeline.peak_memory == ranks

    @pytest.mark.parametrize("pair", [2.0, 2.5, 3.0])
    def test_dualpipe_idles_as_its_formula_says(self, pair, ranks, microbatches):
        microbatches += microbatches % 2
        timeline = simulated("dualpipe", costs(FB=pair), ranks, max(microbatches, 2 * ranks))
        assert timeline.makespan - min(timeline.busy) == (ranks / 2 - 1) * (pair + 2 - 3)
        assert timeline.peak_memory == ranks + 1

    @pytest.mark.parametrize("pair", [2.0, 3.0])
    def test_dualpipev_idles_as_its_formula_says(self, pair, ranks, microbatches):
        table = ap.costs.table(F=1, I=1, W=1, FB=pair)
        timeline = simulated("dualpipev", table, ranks, max(microbatches, 2 * ranks))
        assert timeline.makespan - min(timeline.busy) == (ranks - 1) * (pair + 2 - 3)
        assert timeline.peak_memory == 2 * ranks + 1


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 4), (4, 8), (6, 6), (8, 8), (8, 16)])
class TestChimera:
    def test_equal_forwards_and_backwards(self, ranks, microbatches):
        timeline = simulated("chimera", ap.costs.table(F=1, B=1), ranks, microbatches)
        assert timeline.bubble == pytest.approx((ranks - 2) / (2 * microbatches + ranks - 2))
        assert ranks / 2 + 1 <= timeline.peak_memory <= ranks

    def test_backwards_twice_as_long_as_forwards(self, ranks, microbatches):
        timeline = simulated("chimera", ap.costs.table(F=1, B=2), ranks, ranks)
        assert timeline.bubble == pytest.approx((ranks - 2) / (1.5 * ranks + ranks - 2))


def test_two_copies_keep_twice_the_parameters():
    table = ap.costs.table(activation=0, parameters=1)
    assert simulated("dualpipe", table).peak_memory == 2 * simulated("1f1b", table).peak_memory


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 7, 9])
def test_the_vs_with_little_memory_keep_to_it(ranks):
    half = simulated("v-half", costs(2), ranks, 3 * ranks)
    least = simulated("v-min", costs(2), ranks, 3 * ranks)
    assert half.peak_memory <= ranks // 2 + 1
    assert least.peak_memory <= (ranks + 1) // 3 + 1
