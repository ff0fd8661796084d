"""Gradients of a pipeline equal those of the unsplit model: real ranks over gloo, float64."""

import json

import pytest

from benchmarks.launch import run_ranks

ONE_STAGE = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
SEVERAL = ("interleaved-1f1b", "looped-bfs", "interleaved-zb", "zbv", "v-half", "v-min", "dualpipev", "wave")
TWO_COPIES = ("dualpipe", "chimera")  # of an even number of ranks
NAMES = (*ONE_STAGE, *SEVERAL)
COVERING = {
    1: [("dense", name, 3) for name in NAMES] + [("frozen", "zbv", 2), ("tied", "dualpipev", 2)],
    2: [("dense", name, count) for name in NAMES for count in (1, 7)]
    + [("frozen", name, 2) for name in ("1f1b", "zb-h1", "dualpipev")]
    + [("tied", name, 3) for name in ("1f1b", "interleaved-zb", "dualpipev", "dualpipe")]
    + [("frozen", "chimera", 3)],
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", COVERING)
def test_every_chain_schedule_has_the_gradients_of_the_unsplit_model(ranks):
    check(ranks, COVERING[ranks])


@pytest.mark.slow
def test_with_experts_on_two_ranks():
    check(2, [("moe", name, 3) for name in ("1f1b", "zbv", "dualpipev")])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ranks", "name"),
    [*((r, name) for r in (1, 2, 4) for name in NAMES), *((r, name) for r in (2, 4) for name in TWO_COPIES)],
)
@pytest.mark.parametrize("model", ["dense", "frozen", "tied", "moe"])
def test_the_whole_grid(model, ranks, name):
    check(2 * ranks if model == "moe" else ranks, [(model, name, count) for count in (1, 2, 3, 7, 8)])


def check(processes, cases):
    outputs = run_ranks("tests.pipeline.gradients", processes, args=[json.dumps(cases)], timeout_s=400)
    for output in outputs:
        found = json.loads(output.splitlines()[-1])
        wrong = [(case, worst) for case, worst in zip(cases, found, strict=True) if not worst < 1e-10]
        assert not wrong
