"""Random actions, placements and programs, for property tests."""

from hypothesis import strategies as st

from annopipe.scheduling import placement
from annopipe.scheduling.actions import COMPUTE, MESSAGES, PARAMETERS, Action, overlap
from annopipe.scheduling.programs import Programs

LARGEST = 10**9 - 1


def _compute(stages, microbatches, lanes):
    return st.builds(Action, st.sampled_from(COMPUTE), stages, microbatches, st.just(()), lanes)


def actions(stages=None, microbatches=None):
    """Every kind of action, of the given stages and microbatches."""
    stages = st.integers(0, LARGEST) if stages is None else stages
    microbatches = st.integers(0, LARGEST) if microbatches is None else microbatches
    names = st.text("AFBS_", max_size=5).map("X{}Y".format) | st.sampled_from(
        ("OFFLOAD", "FF", "B_F", "SEND", "OVERLAPS")
    )
    compute = _compute(stages, microbatches, st.integers(1, 4))
    parts = st.lists(
        _compute(stages, microbatches, st.integers(1, 2)),
        min_size=2,
        max_size=4,
        unique_by=lambda action: (action.kind, action.stage, action.microbatch),
    )
    return st.one_of(
        compute,
        st.builds(Action, st.sampled_from(MESSAGES), stages, microbatches),
        st.builds(Action, st.sampled_from(PARAMETERS), stages),
        st.builds(Action, names, stages, st.none() | microbatches),
        parts.map(lambda found: overlap(*found)),
    )


@st.composite
def placements(draw):
    """Every constructor, small."""
    ranks, chunks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    made = (
        placement.linear(ranks),
        placement.looped(ranks, chunks),
        placement.wave(ranks, chunks),
        placement.v(ranks),
        placement.bidirectional(ranks),
        placement.towers([0, 1], [2], top=[1, 0]),
        placement.custom([1, 0, 0, 1, 2]),
    )
    return draw(st.sampled_from(made))


@st.composite
def programs(draw):
    """Actions in no sensible order, each on the rank of its stage."""
    found, microbatches = draw(placements()), draw(st.integers(1, 3))
    rows = []
    for held in found.stages_on:
        # A combination's parts may lie on any stages of the rank.
        one = actions(st.sampled_from(held), st.integers(0, microbatches - 1))
        rows.append(draw(st.lists(one, max_size=6)))
    return Programs.of(found, microbatches, rows)
