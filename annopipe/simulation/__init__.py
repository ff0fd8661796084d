"""Event simulation: when everything runs, which communication is hidden, and what holds the rest.

Of one rank's program in detail; of many ranks that run a schedule in `ranks`. Plain Python, no torch; names are
imported when they are used.

>>> from annopipe.simulation import Network, Task, run
>>> program = [
...     Task("dispatch", "launch", 4e-3, region="moe/dispatch", lane="F", queue="ep"),
...     Task("attention_backward", "compute", 3e-3, region="attention", lane="B"),
...     Task("wait", "wait", launch=0, lane="F", after=(0,)),
...     Task("experts", "compute", 2e-3, region="moe/experts", lane="F", after=(2,)),
... ]
>>> timeline = run(program, Network(in_flight=1))
>>> f"{timeline.makespan:.3f} s, {timeline.hidden_share:.0%} hidden"
'0.006 s, 75% hidden'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annopipe.simulation.comparison import compare
    from annopipe.simulation.engine import makespan
    from annopipe.simulation.exposure import RegionComm
    from annopipe.simulation.host_syncs import HostSync
    from annopipe.simulation.program_timeline import ProgramTimeline
    from annopipe.simulation.ranks.programs import RankPrograms
    from annopipe.simulation.ranks.spans import Message, RankSpan
    from annopipe.simulation.ranks.timeline import ScheduleTimeline
    from annopipe.simulation.running import run
    from annopipe.simulation.spans import Span
    from annopipe.simulation.stalls import Stall
    from annopipe.simulation.subject import Simulatable, SimulatableSchedule, simulate
    from annopipe.simulation.tasks import Network, Task, check_program
    from annopipe.simulation.timeline import Timeline

_EXPORTS = {
    "HostSync": "annopipe.simulation.host_syncs",
    "Message": "annopipe.simulation.ranks.spans",
    "Network": "annopipe.simulation.tasks",
    "ProgramTimeline": "annopipe.simulation.program_timeline",
    "RankPrograms": "annopipe.simulation.ranks.programs",
    "RankSpan": "annopipe.simulation.ranks.spans",
    "RegionComm": "annopipe.simulation.exposure",
    "ScheduleTimeline": "annopipe.simulation.ranks.timeline",
    "Simulatable": "annopipe.simulation.subject",
    "SimulatableSchedule": "annopipe.simulation.subject",
    "Span": "annopipe.simulation.spans",
    "Stall": "annopipe.simulation.stalls",
    "Task": "annopipe.simulation.tasks",
    "Timeline": "annopipe.simulation.timeline",
    "check_program": "annopipe.simulation.tasks",
    "compare": "annopipe.simulation.comparison",
    "makespan": "annopipe.simulation.engine",
    "run": "annopipe.simulation.running",
    "simulate": "annopipe.simulation.subject",
}

__all__ = [
    "HostSync",
    "Message",
    "Network",
    "ProgramTimeline",
    "RankPrograms",
    "RankSpan",
    "RegionComm",
    "ScheduleTimeline",
    "Simulatable",
    "SimulatableSchedule",
    "Span",
    "Stall",
    "Task",
    "Timeline",
    "check_program",
    "compare",
    "makespan",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'annopipe.simulation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
