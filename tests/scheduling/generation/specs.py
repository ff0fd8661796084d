"""Random specifications by rules, for property tests: every kind of placement, limit, order, cost and operation."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement as placements
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.actions import overlap
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.spec import ScheduleSpec
from tests.scheduling.random_schedules import EIGHTHS, graphs

# However busy the machine is.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

PRIORITIES = [("B", "F"), ("F", "B"), ("I", "F", "W"), ("F", "I", "W"), ("W", "I", "F"), ("B", "I", "F", "W"), ("F",)]
ORDERS = ["depth-first", "breadth-first", "k // p, c, k", "-k", "k % 2, c", "c - k", "v - 1 - c"]
LIMITS = ["p - r", "2*(p - r) - 1", "v", "p*v", "v + 1", "m", "2 - c", "s + 1", "(c == 0)*2 + (c > 0)", "max(1, m - s)"]
STRICT = ["k", "k, c", "s + 6*k", "-k, c", "2*k + 3*c"]
OPERATIONS = [
    Operation("RECOMPUTE", before="B", time=0.5),
    Operation("OFFLOAD", after="F", time=0.25, resource="copy", memory=-0.5),
    Operation("RELOAD", before="B", time=0.25, resource="copy", memory=0.5),
    Operation("GROW", before="B", time=0.0, memory=0.25),
    Operation("FETCH", before="F", per="stage", stages=(0,), time=1.0),
    Operation("OPTIMIZER", after="W", per="stage", time=1.0),
    Operation("STORE", after="W", resource="disk"),
]


def two_waves(ranks: int) -> Placement:
    """Two copies of a model with two stages a rank: the first folded down and up, the second up and down."""
    down = [*range(ranks)]
    stages = 2 * ranks
    edges = [(s, s + 1) for s in range(2 * stages - 1) if s != stages - 1]
    rank_of = (*down, *down[::-1], *down[::-1], *down)
    return Placement(rank_of, tuple(edges), (*range(stages),) * 2, (0,) * stages + (1,) * stages)


def any_placement():
    few = st.integers(1, 3)
    return st.one_of(
        few.map(placements.linear),
        st.builds(placements.looped, few, few),
        st.builds(placements.wave, few, st.integers(2, 4)),
        few.map(placements.bidirectional),
        st.integers(1, 2).map(two_waves),
        st.just(placements.towers([0, 1], [2], top=[1, 0], batch_wide=True)),
        st.just(placements.towers([0, 1], [1, 0], top=[2])),
        graphs(),
    )


@st.composite
def costs_for(draw, stages):
    per_stage = st.one_of(EIGHTHS, st.lists(EIGHTHS, min_size=stages, max_size=stages))
    time = per_stage | st.just(lambda stage, microbatch: (1 + stage + 2 * microbatch) / 8)
    pair = st.sampled_from([2.0, 0.0, lambda forward, backward: (forward + 2 * backward) / 8])
    by_microbatch = st.just(lambda action: sum(part.microbatch for part in action.parts) / 8)
    return table(
        F=draw(time),
        I=draw(time),
        W=draw(time),
        B=draw(st.none() | time),
        FB=draw(st.none() | pair),
        send=draw(st.just(0.0) | time),
        latency=draw(EIGHTHS | st.just(0.0)),
        activation=draw(per_stage | st.just(1.0)),
        kept_for_weight=draw(st.sampled_from([0.0, 0.25, 1.0])),
        overlap=draw(st.none() | by_microbatch),
    )


@st.composite
def fields(draw, operations=True):
    """The fields of a specification; not all fit together."""
    placement = draw(any_placement())
    ranks, stages = placement.ranks, placement.stages
    priority = draw(st.sampled_from(PRIORITIES))
    pair = (
        draw(st.none() | st.sampled_from(priority).filter(lambda kind: kind != "F").map(lambda kind: ("F", kind)))
        if (len(priority) > 1)
        else None
    )
    splits: list[Any] = [st.none()]
    if {"B", "I"} <= set(priority):
        splits += [st.booleans(), st.lists(st.booleans(), min_size=stages, max_size=stages)]
        splits += [st.just("unpaired")] if pair == ("F", "B") else []
    strict = st.lists(st.sampled_from(priority), max_size=2, unique=True)
    text = draw(st.sampled_from(STRICT))
    found = draw(st.just([]) | strict.map(lambda kinds: [(kind, text) for kind in kinds]))
    count = st.integers(1, 6)
    amount = st.integers(0, 48).map(lambda n: n / 8)
    names = st.lists(st.sampled_from(OPERATIONS), unique_by=lambda operation: operation.name, max_size=3)
    return {
        "placement": placement,
        "microbatches": draw(st.integers(1, 6)),
        "priority": priority,
        "split_backward": draw(st.one_of(splits)),
        "traversal": draw(st.sampled_from(ORDERS)),
        "backward_traversal": draw(st.none() | st.sampled_from(ORDERS)),
        "in_order": found,
        "in_flight": draw(
            st.none() | count | st.lists(count, min_size=ranks, max_size=ranks) | st.sampled_from(LIMITS)
        ),
        "memory": draw(st.none() | amount | st.lists(amount, min_size=ranks, max_size=ranks)),
        "pair": pair,
        "operations": draw(names) if operations else (),
        "costs": draw(costs_for(stages)),
        "name": "random",
    }


@st.composite
def specs(draw, operations=True):
    """Specifications whose fields fit together; they may still be refused when they are built."""
    found = draw(fields(operations))
    try:
        return ScheduleSpec(**found)
    except ScheduleError:
        # What most often does not fit.
        return ScheduleSpec(**{**found, "in_order": (), "operations": ()})


def texts(schedule):
    return [[str(action) for action in actions] for actions in schedule.ranks]


def text_of(actions):
    return str(overlap(*actions) if len(actions) > 1 else actions[0])
