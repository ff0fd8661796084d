import itertools

from hypothesis import given, settings

from annopipe.simulation import Span, run
from annopipe.simulation.runs import runs
from tests.simulation.programs import NETWORKS, programs


def span(start: float, end: float, region: str = "attention", **more: str) -> Span:
    return Span("compute", "mm", start, end, more.pop("kind", "compute"), region, **more)


def test_neighbours_of_one_look_are_one_run():
    found = runs([span(0.0, 1.0), span(1.0, 2.0), span(2.0, 3.0, "experts"), span(3.0, 4.0)])
    assert [(r.start, r.end, r.label) for r in found] == [
        (0.0, 2.0, "attention"),
        (2.0, 3.0, "experts"),
        (3.0, 4.0, "attention"),
    ]


def test_lane_phase_and_pauses_separate_runs():
    parts = [span(0.0, 1.0, lane="F"), span(1.0, 2.0, lane="B"), span(2.0, 3.0, lane="B", phase="weight_grad")]
    parts.append(span(3.5, 4.0, lane="B", phase="weight_grad"))
    assert len(runs(parts)) == 4
    assert len(runs(parts, gap=0.5)) == 3


def test_only_computations_join():
    for kind in ("launch", "wait", "host"):
        assert len(runs([span(0.0, 1.0, kind=kind), span(1.0, 2.0, kind=kind)])) == 2


def test_label_is_the_own_name_of_the_region_with_the_part_of_the_backward():
    spans = [span(0.0, 1.0, "block0/moe/experts", phase=phase) for phase in ("forward", "input_grad", "weight_grad")]
    assert [run.label for run in runs(spans)] == ["experts", "experts I", "experts W"]
    assert runs([span(0.0, 1.0, "")])[0].label == "mm"


@settings(max_examples=60, deadline=None)
@given(programs(), NETWORKS)
def test_runs_cover_what_the_spans_cover(program, network):
    for track in run(program, network).tracks:
        found = runs(track.spans)
        assert sum(r.seconds for r in found) == sum(s.seconds for s in track.spans)
        assert all(before.end <= after.start for before, after in itertools.pairwise(found))
