"""How long a node takes: measured here, computed from sizes and a machine's datasheet, or read from a file.

``ap.costs.measure(graph, values)``, ``ap.costs.roofline(graph, "h100")`` and ``ap.costs.load(path)`` return
``ap.NodeCosts``; ``ap.costs.measure_interference(group)`` measures what communication does to computation.
"""

from annopipe.costs.collectives import NodeLimit
from annopipe.costs.hardware import Hardware, Link
from annopipe.costs.interference import Interference, measure_interference
from annopipe.costs.local_machine import local_hardware
from annopipe.costs.machines import machine
from annopipe.costs.measurement import LaunchCall, measure, record_launches, wait_for
from annopipe.costs.node_costs import NodeCosts, load
from annopipe.costs.roofline_model import roofline

__all__ = [
    "Hardware",
    "Interference",
    "LaunchCall",
    "Link",
    "NodeCosts",
    "NodeLimit",
    "load",
    "local_hardware",
    "machine",
    "measure",
    "measure_interference",
    "record_launches",
    "roofline",
    "wait_for",
]
