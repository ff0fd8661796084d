"""annopipe: tag regions of model code and have their communication hidden behind computation."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annopipe.annotate import comm, nano_batch, nano_batches, region

_EXPORTS = {
    "AnnopipeError": "annopipe.errors",
    "CaptureError": "annopipe.errors",
    "CostError": "annopipe.errors",
    "GraphError": "annopipe.errors",
    "OrderError": "annopipe.errors",
    "PipelineError": "annopipe.errors",
    "RewriteError": "annopipe.errors",
    "ScheduleError": "annopipe.errors",
    "comm": "annopipe.annotate",
    "nano_batch": "annopipe.annotate",
    "nano_batches": "annopipe.annotate",
    "region": "annopipe.annotate",
    "LowerBound": "annopipe.ordering.bounds",
    "NodeCosts": "annopipe.costs.node_costs",
    "OverlapPlan": "annopipe.ordering.plan",
    "OverlapProblem": "annopipe.ordering.problem",
    "Port": "annopipe.graphs.ports",
    "StageGraph": "annopipe.graphs.stage_graph",
    "StageGraphs": "annopipe.graphs.stage_graphs",
    "Timeline": "annopipe.simulation",
    "extract": "annopipe.graphs.extraction",
    "multiplex": "annopipe.graphs.multiplexing",
    "overlap": "annopipe.ordering.planning",
    "policies": "annopipe.ordering.registry",
    "policy": "annopipe.ordering.registry",
    "region_table": "annopipe.graphs.regions",
    "reorder": "annopipe.graphs.reordering",
    "simulate": "annopipe.simulation",
    "trace": "annopipe.graphs.tracing",
}

_SUBMODULES = frozenset({"costs"})

__all__ = sorted([*_EXPORTS, *_SUBMODULES])  # noqa: PLE0605 - the table above is the list


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"annopipe.{name}")
    raise AttributeError(f"module 'annopipe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
