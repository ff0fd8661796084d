"""The library of named schedules.

>>> schedule("1f1b", ranks=2, microbatches=2)
Schedule(1f1b: 2 ranks, 2 stages, 2 microbatches; 4 F 4 B)
"""

import difflib
from collections.abc import Sequence
from typing import Any

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.library import folded, looped, one_stage, towers, two_copies
from annopipe.scheduling.library.entries import Entry
from annopipe.scheduling.schedule_class import Schedule
from annopipe.scheduling.spec import ScheduleSpec

__all__ = ["Entry", "entry", "schedule", "schedule_spec", "schedules"]

_ENTRIES: dict[str, Entry] = {
    found.name: found for room in (one_stage, looped, folded, two_copies, towers) for found in room.ENTRIES
}
_ORDER = (
    "naive",
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "interleaved-zb",
    "zbv",
    "v-half",
    "v-min",
    "dualpipe",
    "dualpipev",
    "chimera",
    "wave",
    "forward-only",
    "distmm-pipe",
)
_NAMES = {alias.lower(): name for name, found in _ENTRIES.items() for alias in (name, *found.aliases)}


def schedules() -> tuple[str, ...]:
    """The names that `schedule` knows.

    >>> schedules()[:3]
    ('naive', 'gpipe', '1f1b')
    """
    return _ORDER


def entry(name: str) -> Entry:
    """What is known about a named schedule.

    Raises ScheduleError when there is no such name.

    >>> entry("ScheduleZBVZeroBubble").name
    'zbv'
    """
    found = _NAMES.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        near = difflib.get_close_matches(str(name).lower(), _NAMES, n=3)
        meant = f"did you mean {' or '.join(dict.fromkeys(_NAMES[n] for n in near))}? " if near else ""
        raise ScheduleError(f"there is no schedule {name!r}; {meant}the library has {', '.join(_ORDER)}")
    return _ENTRIES[found]


def schedule_spec(
    name: str, ranks: int, microbatches: int, *, costs: ActionCosts | None = None, **options: Any
) -> ScheduleSpec:
    """The specification of a named schedule, to print, vary and build.

    `costs` are what its rules assume (schedules in phases and chimera have one order); None is F = I = W. Its limit of
    memory is that of the same microbatches: with other activations than 1 a stage it is in their unit.

    Raises ScheduleError for an unknown name or option, and for counts that the schedule has no meaning for.

    >>> schedule_spec("1f1b", ranks=4, microbatches=8).varied(in_flight="p").build().name
    '1f1b'
    """
    found = entry(name)
    for argument, value in (("ranks", ranks), ("microbatches", microbatches)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ScheduleError(f"{found.name}: {argument}={value!r}: give a whole number, 1 or more")
    known = dict(found.options)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ScheduleError(f"{found.name} has no option {unknown[0]!r}; its options are: {', '.join(known) or 'none'}")
    spec = found.spec(ranks, microbatches, **{**known, **options}).varied(name=found.name)
    # A specification that has costs of its own is of a published order, which is that of these costs.
    if costs is None or spec.costs != ActionCosts():
        return spec
    return spec.varied(costs=costs, memory=_in_unit_of(costs, spec))


def schedule(name: str, ranks: int, microbatches: int, *, costs: ActionCosts | None = None, **options: Any) -> Schedule:
    """A schedule of the library; `annopipe.schedules()` lists the names, and PyTorch's class names are known too.

    `costs` are what schedules by rules assume about times; None is F = I = W. Options: `chunks` of interleaved-1f1b,
    looped-bfs, interleaved-zb and wave (stages a rank), `towers` of distmm-pipe (ranks of each tower).

    Raises ScheduleError for an unknown name or option, and for counts that the schedule has no meaning for.

    >>> [str(action) for action in schedule("gpipe", ranks=2, microbatches=2).ranks[1]]
    ['1F0', '1F1', '1B0', '1B1']
    """
    return schedule_spec(name, ranks, microbatches, costs=costs, **options).build()


def _in_unit_of(costs: ActionCosts, spec: ScheduleSpec) -> float | tuple[float, ...] | None:
    """The limit of a library's specification, which counts a stage's activation as 1, in the unit of the costs."""
    if not isinstance(spec.memory, float) or not isinstance(costs, ActionCosts):
        return spec.memory
    if not isinstance(costs.activation, Sequence):
        return spec.memory * float(costs.activation)
    return tuple(
        spec.memory * sum(costs.activation_of(stage) for stage in stages) / len(stages)
        for stages in spec.placement.stages_on
    )
