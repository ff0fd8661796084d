import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

import annopipe as ap
from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.spec import ScheduleSpec
from tests.scheduling.generation.specs import calm, specs

BASE = ScheduleSpec(placement.v(2), 4)
CHANGES = {
    "placement": placement.looped(2, 2),
    "microbatches": 5,
    "priority": ("F", "B"),
    "split_backward": False,
    "traversal": "breadth-first",
    "backward_traversal": "k",
    "in_order": (("F", "k"),),
    "in_flight": "p*v",
    "memory": 8.0,
    "pair": ("F", "B"),
    "phases": ("* : F; * : B",),
    "operations": (Operation("OFFLOAD", after="F"),),
    "costs": table(F=2.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_that_differs_is_compared_and_shown(name):
    varied = BASE.varied(**{name: CHANGES[name]})
    assert varied != BASE
    assert varied == BASE.varied(**{name: CHANGES[name]})
    assert hash(varied) == hash(BASE.varied(**{name: CHANGES[name]}))
    given = "" if name in ("placement", "microbatches") else f", {name}={CHANGES[name]!r}"
    assert repr(varied) == f"ScheduleSpec({varied.placement!r}, {varied.microbatches}{given})"
    assert varied.varied(**{name: getattr(BASE, name)}) == BASE


def test_a_layout_is_shown_with_its_phases():
    varied = BASE.varied(phases=("* : F; * : B",), layout_for="2*p")
    assert repr(varied) == (
        "ScheduleSpec(Placement(v: rank 0: 0 3, rank 1: 1 2), 4, phases=('* : F; * : B',), layout_for='2*p')"
    )
    assert varied != BASE.varied(phases=("* : F; * : B",))


def test_defaults_are_not_shown():
    assert repr(BASE) == "ScheduleSpec(Placement(v: rank 0: 0 3, rank 1: 1 2), 4)"


def test_a_name_is_shown_and_given_to_the_schedule_and_not_compared():
    named = BASE.varied(name="mine")
    assert named == BASE
    assert hash(named) == hash(BASE)
    assert repr(named).endswith("4, name='mine')")
    assert named.build().name == "mine"


def test_specifications_are_keys():
    assert {BASE: 1, BASE.varied(microbatches=5): 2}[ScheduleSpec(placement.v(2), 4)] == 1
    assert len({ap.schedule_spec(name, 4, 8) for name in ap.schedules()}) == len(ap.schedules())


def test_a_field_that_there_is_not_is_refused():
    with pytest.raises(ScheduleError, match="a ScheduleSpec has no field 'inflight'; it has placement, microbatches, "):
        BASE.varied(inflight=2)


def test_what_is_varied_is_looked_at_again():
    with pytest.raises(ScheduleError, match="in_flight has 3 entries and there are 2 ranks"):
        BASE.varied(in_flight=(1, 2, 3))


@settings(calm, max_examples=30)
@given(specs())
def test_varied_and_back_is_the_same(spec):
    assert spec.varied(microbatches=spec.microbatches + 1).varied(microbatches=spec.microbatches) == spec
    assert spec.varied() == spec


PROGRAM = """
import annopipe as ap
from annopipe.scheduling import placement
towers = placement.towers([0, 1], [1, 0], top=[2], batch_wide=True)
fields = dict(priority=("B", "I", "F", "W"), pair=("F", "B"), split_backward="unpaired", in_flight="m*v")
for spec in (
    ap.ScheduleSpec(towers, 5, **fields),
    ap.ScheduleSpec(placement.custom([2, 0, 1, 0, 2], [(0, 3), (1, 3), (2, 4), (3, 4)]), 4, memory=6.0),
    *(ap.schedule_spec(name, 4, 6) for name in ap.schedules()),
):
    print(repr(spec), spec.build().programs.texts())
"""


def test_every_process_builds_the_same_schedule():
    printed = set()
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        root = Path(__file__).parents[2]
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            cwd=root,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        printed.add(found.stdout)
    assert len(printed) == 1
    assert printed.pop().count("\n") == len(ap.schedules()) + 2
