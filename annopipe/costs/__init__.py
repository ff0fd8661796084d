"""How long a node takes: measured here, or read from a file.

``ap.costs.measure(graph, values)`` and ``ap.costs.load(path)`` return ``ap.NodeCosts``.
"""

from annopipe.costs.measurement import LaunchCall, measure, record_launches, wait_for
from annopipe.costs.node_costs import NodeCosts, load

__all__ = ["LaunchCall", "NodeCosts", "load", "measure", "record_launches", "wait_for"]
