"""Gradients of a pipeline equal those of the unsplit model: real ranks over gloo, float64."""

import json

import pytest

from benchmarks.launch import run_ranks

ONE_STAGE = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
SEVERAL = ("interleaved-1f1b", "looped-bfs", "interleaved-zb", "zbv", "v-half", "v-min", "dualpipev", "wave")
NAMES = (*ONE_STAGE, *SEVERAL)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, (1, 3)), (2, (1, 2, 7)), (4, (3, 8))])
def test_every_chain_schedule_has_the_gradients_of_the_unsplit_model(ranks, microbatches):
    wanted = [(name, count) for name in NAMES for count in microbatches]
    outputs = run_ranks("tests.pipeline.gradients", ranks, args=[json.dumps(wanted)], timeout_s=400)
    for output in outputs:
        found = json.loads(output.splitlines()[-1])
        assert [(name, count) for name, count, _ in found] == wanted
        assert max(worst for *_, worst in found) < 1e-14
