"""Random orders of computation that can run, for property tests: what is ready is done, in any order."""

from hypothesis import strategies as st

from annopipe.scheduling import placement
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.programs import Programs

SKIPPING = placement.custom([0, 1, 2, 0], [(0, 1), (1, 2), (0, 2), (2, 3), (0, 3)], name="skipping")
PLACEMENTS = (
    placement.linear(1),
    placement.linear(3),
    placement.looped(2, 2),
    placement.wave(2, 3),
    placement.v(3),
    placement.bidirectional(3),
    placement.towers([0, 1], [2], top=[3]),
    placement.towers([0, 1], [2], [1], top=[0, 2], batch_wide=True),
    placement.custom([0, 1, 1, 0, 2]),
    SKIPPING,
)


class Run:
    """What is done so far, and what is ready."""

    def __init__(self, where, microbatches, *, forward_only, split) -> None:
        self.where, self.microbatches = where, microbatches
        self.rows: list = [[] for _ in range(where.ranks)]
        self.done: set = set()
        seen = {stage: where.microbatches_of(stage, microbatches) for stage in range(where.stages)}
        self.open = {("F", stage, k) for stage, ks in seen.items() for k in ks}
        if not forward_only:
            for stage, ks in seen.items():
                for k in ks:
                    self.open |= {(kind, stage, k) for kind in ("IW" if split(stage, k) else "B")}

    def needs(self, action):
        kind, stage, k = action
        if kind == "F":
            return [[("F", before, k)] for before in self.where.predecessors[stage]]
        if kind == "W":
            return [[("I", stage, k)]]
        needed = [[("B", after, k), ("I", after, k)] for after in self.where.successors[stage]]
        if stage in self.where.batch_wide:
            needed += [[("F", stage, j)] for j in self.where.microbatches_of(stage, self.microbatches)]
        return [*needed, [("F", stage, k)]]

    def ready(self):
        return sorted(
            action for action in self.open if all(any(n in self.done for n in choice) for choice in self.needs(action))
        )

    def do(self, *actions) -> None:
        self.open -= set(actions)
        self.done |= set(actions)
        made = [Action(*action) for action in actions]
        self.rows[self.where.rank_of[actions[0][1]]].append(overlap(*made) if made[1:] else made[0])


@st.composite
def legal_programs(draw, placements=PLACEMENTS, operations=True):
    """A placement, microbatches, splits, combinations and operations as they come; it passes the check."""
    where, microbatches = draw(st.sampled_from(placements)), draw(st.integers(1, 4))
    random = draw(st.randoms(use_true_random=False))
    splits = draw(st.sampled_from([0.0, 0.5, 1.0]))
    combined = draw(st.sampled_from([0.0, 0.5]))
    run = Run(where, microbatches, forward_only=draw(st.booleans()), split=lambda stage, k: random.random() < splits)
    while run.open:
        ready = run.ready()
        first = random.choice(ready)
        beside = [a for a in ready if a != first and where.rank_of[a[1]] == where.rank_of[first[1]]]
        beside = [a for a in beside if run.where.batch_wide.isdisjoint({a[1], first[1]})]
        if beside and random.random() < combined:
            run.do(first, random.choice(beside))
        else:
            run.do(first)
        if operations and random.random() < 0.1:
            run.rows[where.rank_of[first[1]]].append(Action("OFFLOAD", first[1], first[2]))
    unique = [list(dict.fromkeys(row)) for row in run.rows]
    return Programs.of(where, microbatches, unique)
