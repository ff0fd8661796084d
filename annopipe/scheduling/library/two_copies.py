"""Schedules with two copies of the model, one in each direction."""

from annopipe.errors import ScheduleError
from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.library.entries import Entry
from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["ENTRIES"]


def _dualpipe(ranks: int, microbatches: int) -> ScheduleSpec:
    _refuse_odd("dualpipe", ranks)
    # A line is a step of the published algorithm; h is the distance from the nearer end.
    steps = (
        "p - 2*h - 2 : F0",
        "h + 1 : F0 F1",
        "p//2 - h - 1 : I1 W1 F1",
        "h == p//2 - 1 : F0 B1 F1&B0; m//2 - p + h + 1 - (h == p//2 - 1) : F0&B1 F1&B0",
        "p//2 - h - 1 : B1 F1&B0",
        "(h + 1)//2 : B1 B0; (h + 1)%2 : B1 I0; (h + 1)//2 : I1 I0",
        "p//2 - h - 1 : W I0",
        "* : W",
    )
    return ScheduleSpec(
        placement.bidirectional(ranks),
        microbatches,
        phases=tuple(step.replace("h", "min(r, p - 1 - r)") for step in steps),
        layout_for="max(2*p, m + m%2)",
    )


def _chimera(ranks: int, microbatches: int) -> ScheduleSpec:
    _refuse_odd("chimera", ranks)
    # The published order is that of passes of one length.
    equal = ActionCosts(B=1.0)
    return ScheduleSpec(placement.bidirectional(ranks), microbatches, priority=("B", "F"), in_flight="p", costs=equal)


def _refuse_odd(name: str, ranks: int) -> None:
    if ranks % 2:
        raise ScheduleError(f"{name}: ranks={ranks}: two copies in opposite directions need an even number of ranks")


ENTRIES = (
    Entry(
        "dualpipe",
        _dualpipe,
        "Two copies of the model in opposite directions; forwards and backwards run as combined graphs.",
        "expert-parallel communication to hide, and memory for two copies of the parameters",
        "DeepSeek-AI, DeepSeek-V3 Technical Report, 2024",
        bubble="(p/2-1)(FB+B-3W)",
        peak="p+1",
    ),
    Entry(
        "chimera",
        _chimera,
        "Two copies of the model in opposite directions fill each other's bubbles.",
        "few microbatches, and memory for two copies of the parameters",
        "Li and Hoefler, Chimera, 2021",
        bubble="(p-2)/(2m+p-2) of the time when F=B",
        peak="p/2+1 to p",
    ),
)
