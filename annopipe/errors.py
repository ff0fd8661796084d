"""The exceptions that annopipe raises for what a user can cause.

Each message says what happened, where (region, node, action, rank or file and line) and what to do about it.
"""

__all__ = [
    "AnnopipeError",
    "CaptureError",
    "CostError",
    "GraphError",
    "OrderError",
    "PipelineError",
    "RewriteError",
    "ScheduleError",
]


class AnnopipeError(Exception):
    """Base class: catch this to catch everything annopipe raises on purpose."""


class CaptureError(AnnopipeError, RuntimeError):
    """A module cannot be traced into graphs, or a traced graph is used for what it was not traced for."""


class GraphError(AnnopipeError, ValueError):
    """A tag, a port or a graph is malformed, or a pass is asked for what the graph does not have."""


class OrderError(AnnopipeError, ValueError):
    """An order of a graph's nodes is illegal, or ranks disagree about it."""


class ScheduleError(AnnopipeError, ValueError):
    """A pipeline schedule is malformed, illegal or would deadlock."""


class CostError(AnnopipeError, ValueError):
    """Costs are missing, malformed, or belong to another graph."""


class PipelineError(AnnopipeError, RuntimeError):
    """A pipeline step cannot run, or stopped before its end."""


class RewriteError(AnnopipeError, ValueError):
    """Source code cannot be rewritten as asked."""
