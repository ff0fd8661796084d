"""The example's losses are the same with and without the one line that attaches the schedule."""

import json

import pytest

from benchmarks.launch import run_ranks

STEPS = 4


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_one_line_changes_no_loss_of_any_schedule(name, ranks, tmp_path):
    compare(tmp_path, ranks, name)


def compare(folder, ranks, name):
    found = []
    for line in ([], ["--attach"]):
        path = folder / f"losses{len(line)}.json"
        args = ["--steps", str(STEPS), "--schedule", name, "--json", str(path), *line]
        run_ranks("examples.upstream_schedule", ranks, args=args, timeout_s=400)
        found.append(json.loads(path.read_text()))
    assert len(found[0]) == STEPS
    assert found[1] == pytest.approx(found[0], abs=1e-10, rel=0)
    assert found[0][-1] < found[0][0]
