import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import AnnopipeError, CostError, ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.spec import ScheduleSpec
from tests.scheduling.generation.specs import calm

ALL = ("B", "I", "F", "W")
PHASES = {"phases": ("* : F; * : B",)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"placement": 4}, "placement is 4; make one with annopipe.placement"),
        ({"placement": None}, "placement is None"),
        ({"costs": 3}, "costs is 3; make them with annopipe.costs.table"),
        ({"costs": None}, "costs is None"),
        ({"microbatches": 0}, "microbatches=0: give a whole number, 1 or more"),
        ({"microbatches": 2.0}, "microbatches=2.0: give a whole number"),
        ({"microbatches": True}, "microbatches=True: give a whole number"),
        ({"microbatches": "4"}, "microbatches='4': give a whole number"),
        ({"microbatches": 10**12}, "microbatches=1000000000000 on 2 stages are more than 10000000 forwards"),
        ({"name": None}, "name=None: give text"),
        ({"name": 3}, "name=3: give text"),
        ({"priority": ()}, "priority=(): name each of F, B, I and W at most once, and F"),
        ({"priority": "BF"}, "priority='BF': name each"),
        ({"priority": ("B", "F", "F")}, "priority=('B', 'F', 'F'): name each"),
        ({"priority": ("B",)}, "priority=('B',): name each"),
        ({"priority": ("F", "Q")}, "priority=('F', 'Q'): name each"),
        ({"priority": ("F", ["B"])}, "priority=('F', ('B',)): name each"),
        ({"priority": None}, "priority=None: name each"),
        ({"priority": ("I", "F")}, "priority=('I', 'F'): a separated backward is I and W, name both"),
        ({"priority": ("W", "F")}, "priority=('W', 'F'): a separated backward is I and W"),
        ({"pair": ("B", "F")}, "pair=('B', 'F'): a pair is F with B, I or W"),
        ({"pair": "FB"}, "pair='FB': a pair is"),
        ({"pair": ("F",)}, "pair=('F',): a pair is"),
        ({"pair": ("F", "I")}, "pair=('F', 'I'), and priority=('B', 'F') has no such kind"),
        ({"priority": ("F",), "pair": ("F", "B")}, "pair=('F', 'B'), and priority=('F',) has no such kind"),
        ({"split_backward": "unpaired"}, "split_backward='unpaired': 'unpaired' goes with pair=('F', 'B')"),
        ({"split_backward": "yes"}, "split_backward='yes': 'unpaired' goes with"),
        ({"split_backward": 1}, "split_backward=1: give True, False, one per stage, or 'unpaired'"),
        ({"split_backward": ["I", "B"]}, "split_backward=('I', 'B'): give True, False"),
        ({"split_backward": [True]}, "split_backward has 1 entries and there are 2 stages; give one for each"),
        ({"split_backward": True}, "split_backward=True, and priority=('B', 'F') has no I and W; say where"),
        ({"split_backward": (False, True)}, "split_backward=(False, True), and priority=('B', 'F') has no I and W"),
        (
            {"split_backward": False, "priority": ("I", "F", "W")},
            "split_backward=False, and priority=('I', 'F', 'W') has no B; say where it belongs",
        ),
        ({"split_backward": [False, False], "priority": ("F",)}, "split_backward=(False, False), and priority=('F',)"),
        ({"traversal": "depthfirst"}, "traversal='depthfirst' is not one of depth-first, breadth-first: 'depthfirst'"),
        ({"traversal": None}, "traversal=None is not one of depth-first, breadth-first: None is not a formula"),
        ({"traversal": ("k", "c")}, "traversal=('k', 'c') is not one of"),
        ({"backward_traversal": 3}, "backward_traversal=3 is not one of"),
        ({"backward_traversal": "k /"}, "'k /' is not a formula"),
        ({"in_order": "k"}, "in_order='k': give (kind, formula) pairs, such as (('F', 'k'),)"),
        ({"in_order": ("F", "k")}, "in_order=('F', 'k'): give (kind, formula) pairs"),
        ({"in_order": None}, "in_order=None: give (kind, formula) pairs"),
        ({"in_order": [("F", 3)]}, "in_order of F: 3 is not a formula; give text"),
        ({"in_order": [("F", "q")]}, "in_order of F: 'q' in 'q' is not known here"),
        ({"in_order": [("I", "k")]}, "in_order names 'I', and priority=('B', 'F') has no such kind"),
        ({"in_order": [("F", "k"), ("F", "-k")]}, "in_order=(('F', 'k'), ('F', '-k')): name each kind once"),
        ({"in_order": [("F", "k"), ("B", "k, c")]}, "the kinds are in one order, give each as many keys"),
        (
            {"in_order": [("F", "k"), ("B", "k")], "pair": ("F", "B")},
            "in_order names F and B, which pair=('F', 'B') runs together; leave one out",
        ),
        (
            {"in_order": [("W", "k")], "pair": ("F", "B"), "priority": ALL, "split_backward": "unpaired"},
            "in_order names I or W, and split_backward='unpaired' does not say which there are; name F or B",
        ),
        ({"in_flight": 2.0}, "in_flight=2.0: give a whole number, one per rank, or a formula such as 'p - r'"),
        ({"in_flight": True}, "in_flight=True: give a whole number"),
        ({"in_flight": (2, 2.5)}, "in_flight=(2, 2.5): give a whole number"),
        ({"in_flight": (2, None)}, "in_flight=(2, None): give a whole number"),
        ({"in_flight": (2, 2, 2)}, "in_flight has 3 entries and there are 2 ranks; give one for each"),
        ({"in_flight": "k"}, "in_flight: 'k' in 'k' is not known here; use whole numbers, p, r, m, v, s, c, "),
        ({"in_flight": "p, r"}, "in_flight: '(p, r)' in 'p, r' is not known here"),
        ({"memory": "2"}, "memory='2': give a number that is not negative, or one per rank"),
        ({"memory": -1}, "memory=-1: give a number"),
        ({"memory": float("nan")}, "memory=nan: give a number"),
        ({"memory": 10**400}, "memory=1000"),
        ({"memory": True}, "memory=True: give a number"),
        ({"memory": (1.0,)}, "memory has 1 entries and there are 2 ranks"),
        ({"memory": (1.0, None)}, "memory=(1.0, None): give a number"),
        ({"phases": "m : F"}, "phases='m : F': give a tuple of lines, such as ('m : F', 'm : B')"),
        ({"phases": (3,)}, "phases=(3,): give a tuple of lines"),
        ({"phases": None}, "phases=None: give a tuple of lines"),
        ({"phases": ("m : Q",)}, "phases: 'Q' in 'm : Q' is not a token"),
        ({**PHASES, "in_flight": 2}, "phases give the exact order, and in_flight belongs to rules; leave one of them"),
        ({**PHASES, "memory": 2}, "phases give the exact order, and memory belongs to rules"),
        ({**PHASES, "pair": ("F", "B")}, "phases give the exact order, and pair belongs to rules"),
        ({**PHASES, "in_order": [("F", "k")]}, "phases give the exact order, and in_order belongs to rules"),
        ({**PHASES, "split_backward": False}, "phases give the exact order, and split_backward belongs to rules"),
        ({"layout_for": "2*p"}, "layout_for='2*p' belongs to phases, and there are none"),
        ({**PHASES, "layout_for": 8}, "layout_for: 8 is not a formula"),
        ({**PHASES, "layout_for": "2*r"}, "layout_for: 'r' in '2*r' is not known here; use whole numbers, p, m, v, "),
        ({"operations": "OFFLOAD"}, "operations='OFFLOAD': give a tuple of annopipe.Operation"),
        ({"operations": ("OFFLOAD",)}, "operations=('OFFLOAD',): give a tuple of annopipe.Operation"),
        ({"operations": Operation("OFFLOAD", after="F")}, "give a tuple of annopipe.Operation"),
        ({"operations": None}, "operations=None: give a tuple"),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_name(fields, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        ScheduleSpec(**{"placement": placement.linear(2), "microbatches": 4, **fields})


def test_the_name_of_the_specification_is_in_the_message():
    with pytest.raises(ScheduleError, match="^mine: memory=-1"):
        ScheduleSpec(placement.linear(2), 4, memory=-1, name="mine")
    with pytest.raises(ScheduleError, match="^schedule spec: memory=-1"):
        ScheduleSpec(placement.linear(2), 4, memory=-1)


def test_costs_of_other_stages_are_refused_as_by_the_simulation():
    with pytest.raises(CostError, match="F has 3 entries and the schedule 2 stages"):
        ScheduleSpec(placement.linear(2), 4, costs=table(F=[1, 2, 3]))


def test_lists_become_tuples():
    lists = ScheduleSpec(
        placement.linear(2),
        4,
        priority=["B", "I", "F", "W"],
        split_backward=[True, False],
        in_order=[["F", "k"]],
        in_flight=[2, 1],
        memory=[2, 1],
        pair=["F", "B"],
        operations=[Operation("OFFLOAD", after="F")],
    )
    tuples = ScheduleSpec(
        placement.linear(2),
        4,
        priority=ALL,
        split_backward=(True, False),
        in_order=(("F", "k"),),
        in_flight=(2, 1),
        memory=(2, 1),
        pair=("F", "B"),
        operations=(Operation("OFFLOAD", after="F"),),
    )
    assert lists == tuples
    assert hash(lists) == hash(tuples)
    assert ScheduleSpec(placement.linear(1), 1, phases=["* : F", "* : B"]).phases == ("* : F", "* : B")


SCALARS = st.sampled_from(
    [None, True, 0, 1, -1, 2.5, float("nan"), float("inf"), 10**400, "", "k", "F", b"F", object()]
)
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=4)
FIELDS = sorted(set(ScheduleSpec.__dataclass_fields__))


@settings(calm, max_examples=300)
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=2))
def test_whatever_is_given_is_built_or_refused_with_an_error_of_ours(fields):
    try:
        ScheduleSpec(**{"placement": placement.v(2), "microbatches": 2, **fields}).build().check()
    except AnnopipeError as error:
        assert str(error)  # noqa: PT017 - either end is fine
