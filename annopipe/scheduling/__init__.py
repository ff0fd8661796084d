"""Pipeline schedules: actions, placements, a language that generates them, checks and lowering; no torch.

>>> from annopipe.scheduling import ScheduleSpec, placement
>>> spec = ScheduleSpec(placement.linear(ranks=2), microbatches=2, priority=("B", "F"), in_flight="p - r")
>>> [str(action) for action in spec.build().ranks[0]]
['0F0', '0F1', '0B0', '0B1']
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annopipe.scheduling import placement
    from annopipe.scheduling.action_costs import ActionCosts, table
    from annopipe.scheduling.actions import Action, overlap
    from annopipe.scheduling.generation.explaining import Decision, ReadyAction
    from annopipe.scheduling.library import Entry, entry, schedule, schedule_spec, schedules
    from annopipe.scheduling.operations import Operation
    from annopipe.scheduling.placement import Placement
    from annopipe.scheduling.schedule_class import Schedule
    from annopipe.scheduling.spec import ScheduleSpec

_EXPORTS = {
    "Action": "annopipe.scheduling.actions",
    "ActionCosts": "annopipe.scheduling.action_costs",
    "Decision": "annopipe.scheduling.generation.explaining",
    "Entry": "annopipe.scheduling.library",
    "Operation": "annopipe.scheduling.operations",
    "Placement": "annopipe.scheduling.placement",
    "ReadyAction": "annopipe.scheduling.generation.explaining",
    "Schedule": "annopipe.scheduling.schedule_class",
    "ScheduleSpec": "annopipe.scheduling.spec",
    "entry": "annopipe.scheduling.library",
    "overlap": "annopipe.scheduling.actions",
    "schedule": "annopipe.scheduling.library",
    "schedule_spec": "annopipe.scheduling.library",
    "schedules": "annopipe.scheduling.library",
    "table": "annopipe.scheduling.action_costs",
}

__all__ = [
    "Action",
    "ActionCosts",
    "Decision",
    "Entry",
    "Operation",
    "Placement",
    "ReadyAction",
    "Schedule",
    "ScheduleSpec",
    "entry",
    "overlap",
    "placement",
    "schedule",
    "schedule_spec",
    "schedules",
    "table",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name == "placement":
        return importlib.import_module("annopipe.scheduling.placement")
    raise AttributeError(f"module 'annopipe.scheduling' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
