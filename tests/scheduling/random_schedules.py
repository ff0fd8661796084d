"""Random schedules that can run, on placements of every sort, and costs for them."""

from hypothesis import strategies as st

from annopipe.scheduling import placement as placements
from annopipe.scheduling.action_costs import ActionCosts, table
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.lanes import whole
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.schedule_class import Schedule

EIGHTHS = st.integers(0, 16).map(lambda n: n / 8)  # sums of these are exact


@st.composite
def graphs(draw: st.DrawFn) -> Placement:
    """Stages on any ranks with any edges upwards: connections that skip stages, several ends, several beginnings."""
    stages = draw(st.integers(1, 5))
    ranks = draw(st.integers(1, stages))
    rank_of = [
        *range(ranks),
        *draw(st.lists(st.integers(0, ranks - 1), min_size=stages - ranks, max_size=stages - ranks)),
    ]
    pairs = [(a, b) for b in range(stages) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    wide = frozenset(draw(st.sets(st.integers(0, stages - 1), max_size=1)))
    return placements.custom(draw(st.permutations(rank_of)), edges, batch_wide=wide)


def any_placement() -> st.SearchStrategy[Placement]:
    few = st.integers(1, 3)
    return st.one_of(
        few.map(placements.linear),
        st.builds(placements.looped, few, few),
        st.builds(placements.wave, few, few),
        few.map(placements.bidirectional),
        st.just(placements.towers([0, 1], [2], top=[3, 1], batch_wide=True)),
        graphs(),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A schedule without messages: each rank takes any of the actions that are ready, one or several together."""
    placement, microbatches = draw(any_placement()), draw(st.integers(1, 3))
    backwards = draw(st.sampled_from(["B", "IW", "both", "none"]))
    left, needs = set[Action](), dict[Action, list[Action]]()
    gradient = dict[tuple[int, int], Action]()
    for stage in reversed(range(placement.stages)):
        for m in placement.microbatches_of(stage, microbatches):
            split = backwards == "IW" or (backwards == "both" and draw(st.booleans()))
            forward, gradient[stage, m] = Action("F", stage, m), Action("I" if split else "B", stage, m)
            needs[forward] = [Action("F", before, m) for before in placement.predecessors[stage]]
            seen = placement.microbatches_of(stage, microbatches) if stage in placement.batch_wide else [m]
            needs[gradient[stage, m]] = [Action("F", stage, other) for other in seen]
            needs[Action("W", stage, m)] = [gradient[stage, m]]
            left |= {forward} if backwards == "none" else {forward, gradient[stage, m]}
            left |= {Action("W", stage, m)} if split and backwards != "none" else set()
    for (stage, m), action in gradient.items():
        needs[action] += [gradient[after, m] for after in placement.successors[stage]]
    ranks: list[list[Action]] = [[] for _ in range(placement.ranks)]
    while left:
        ready = sorted((a for a in left if not left & set(needs[a])), key=str)
        rank = placement.rank_of[draw(st.sampled_from(ready)).stage]
        own = [action for action in ready if placement.rank_of[action.stage] == rank]
        chosen = draw(st.lists(st.sampled_from(own), min_size=1, max_size=3, unique=True))
        lanes = draw(st.sampled_from([1, 1, 2]))
        single = Action(chosen[0].kind, chosen[0].stage, chosen[0].microbatch, (), lanes)
        ranks[rank].append(overlap(*chosen) if len(chosen) > 1 else single)
        left -= set(chosen)
    return Schedule.of(placement, microbatches, ranks, "random")


def whole_schedules() -> st.SearchStrategy[Schedule]:
    """The same without nano-batches."""
    return schedules().map(_whole)


def _whole(schedule: Schedule) -> Schedule:
    rows = [[whole(action) for action in row] for row in schedule.ranks]
    return Schedule.of(schedule.placement, schedule.microbatches, rows, schedule.name)


@st.composite
def costs_for(draw: st.DrawFn, schedule: Schedule) -> ActionCosts:
    stages = schedule.placement.stages
    per_stage = st.one_of(EIGHTHS, st.lists(EIGHTHS, min_size=stages, max_size=stages))
    by_microbatch = st.just(lambda stage, microbatch: (stage + 2 * microbatch) / 8)
    time = st.one_of(per_stage, by_microbatch)
    return table(
        F=draw(time),
        I=draw(time),
        W=draw(time),
        B=draw(st.none() | time),
        FB=draw(st.none() | EIGHTHS),
        send=draw(time),
        latency=draw(EIGHTHS),
        activation=draw(per_stage),
        kept_for_weight=draw(st.sampled_from([0.0, 0.25, 1.0])),
        parameters=draw(per_stage),
    )


def with_messages(schedule: Schedule) -> Schedule:
    """The obvious lowering: receive just before, send just after."""
    placement = schedule.placement

    def singles(action: Action, kinds: str) -> list[Action]:
        return [part for part in action.singles if part.kind in kinds]

    def others(stage: int, near: tuple[tuple[int, ...], ...]) -> bool:
        return any(placement.rank_of[other] != placement.rank_of[stage] for other in near[stage])

    ranks = []
    for actions in schedule.ranks:
        program: list[Action] = []
        for action in actions:
            front = [("RECV_F", a, placement.predecessors) for a in singles(action, "F")]
            front += [("RECV_B", a, placement.successors) for a in singles(action, "BI")]
            back = [("SEND_F", a, placement.successors) for a in singles(action, "F")]
            back += [("SEND_B", a, placement.predecessors) for a in singles(action, "BI")]
            order = [*action.singles]
            back = [message for part in order for message in back if message[1] == part]
            program += [Action(kind, a.stage, a.microbatch) for kind, a, near in front if others(a.stage, near)]
            program.append(action)
            program += [Action(kind, a.stage, a.microbatch) for kind, a, near in back if others(a.stage, near)]
        ranks.append(program)
    return Schedule.of(placement, schedule.microbatches, ranks, schedule.name)
