"""Pipeline schedules: actions, placements, a language that generates them, checks and lowering; no torch.

>>> from annopipe.scheduling import ScheduleSpec, placement
>>> spec = ScheduleSpec(placement.linear(ranks=2), microbatches=2, priority=("B", "F"), in_flight="p - r")
>>> [str(action) for action in spec.build().ranks[0]]
['0F0', '0F1', '0B0', '0B1']
"""

from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import ActionCosts, table
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.generation.explaining import Decision, ReadyAction
from annopipe.scheduling.library import Entry, entry, schedule, schedule_spec, schedules
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.schedule import Schedule
from annopipe.scheduling.spec import ScheduleSpec

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
