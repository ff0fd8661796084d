"""How long a node or an action takes: measured here, computed from sizes and a datasheet, a table, or read from a file.

``ap.costs.measure(graph, values)``, ``ap.costs.roofline(graph, "h100")`` and ``ap.costs.load(path)`` return
``ap.NodeCosts``; ``ap.costs.measure_interference(group)`` measures what communication does to computation, and
``ap.costs.calibrate(group)`` the whole machine, links included.
``ap.costs.table(F=1.0, ...)`` returns ``ap.ActionCosts``, and needs no torch: names are imported when they are used.
``ap.costs.actions(graphs, node_costs)`` makes ``ap.ActionCosts`` of both; it plans, so it lives above, in ``ordering``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annopipe.costs.calibrating import calibrate
    from annopipe.costs.calibration import Calibration
    from annopipe.costs.collectives import NodeLimit
    from annopipe.costs.hardware import Hardware, Link
    from annopipe.costs.interference import Interference, measure_interference
    from annopipe.costs.layer_times import LayerTimes, measure_layers
    from annopipe.costs.local_machine import local_hardware
    from annopipe.costs.machines import machine
    from annopipe.costs.measurement import LaunchCall, measure, record_launches, wait_for
    from annopipe.costs.node_costs import NodeCosts, load
    from annopipe.costs.roofline_model import roofline
    from annopipe.scheduling.action_costs import ActionCosts, table

_EXPORTS = {
    "ActionCosts": "annopipe.scheduling.action_costs",
    "actions": "annopipe.ordering.action_costs",
    "Calibration": "annopipe.costs.calibration",
    "calibrate": "annopipe.costs.calibrating",
    "Hardware": "annopipe.costs.hardware",
    "Interference": "annopipe.costs.interference",
    "LaunchCall": "annopipe.costs.measurement",
    "LayerTimes": "annopipe.costs.layer_times",
    "Link": "annopipe.costs.hardware",
    "NodeCosts": "annopipe.costs.node_costs",
    "NodeLimit": "annopipe.costs.collectives",
    "load": "annopipe.costs.node_costs",
    "local_hardware": "annopipe.costs.local_machine",
    "machine": "annopipe.costs.machines",
    "measure": "annopipe.costs.measurement",
    "measure_interference": "annopipe.costs.interference",
    "measure_layers": "annopipe.costs.layer_times",
    "record_launches": "annopipe.costs.measurement",
    "roofline": "annopipe.costs.roofline_model",
    "table": "annopipe.scheduling.action_costs",
    "wait_for": "annopipe.costs.measurement",
}

__all__ = [
    "ActionCosts",
    "Calibration",
    "Hardware",
    "Interference",
    "LaunchCall",
    "LayerTimes",
    "Link",
    "NodeCosts",
    "NodeLimit",
    "actions",
    "calibrate",
    "load",
    "local_hardware",
    "machine",
    "measure",
    "measure_interference",
    "measure_layers",
    "record_launches",
    "roofline",
    "table",
    "wait_for",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'annopipe.costs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
