"""annopipe: tag regions of model code and have their communication hidden behind computation."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annopipe import costs
    from annopipe.annotate import comm, nano_batch, nano_batches, region
    from annopipe.auxiliary import auxiliary_loss, auxiliary_losses
    from annopipe.capturing.graphs import CapturedGraph, capture_graph
    from annopipe.capturing.report import CaptureReport
    from annopipe.compiling.graphs import CompiledGraph, compile_graph
    from annopipe.compiling.report import CompileReport
    from annopipe.costs.cluster import Cluster
    from annopipe.costs.node_costs import NodeCosts
    from annopipe.errors import (
        AnnopipeError,
        CaptureError,
        CostError,
        GraphError,
        OrderError,
        PipelineError,
        RewriteError,
        ScheduleError,
    )
    from annopipe.graphs.bucketing import bucket
    from annopipe.graphs.declared_ops import forget_operator, register_comm, register_pure
    from annopipe.graphs.extraction import extract
    from annopipe.graphs.foreign_tags import UPSTREAM_TAGS, ForeignTag
    from annopipe.graphs.multiplexing import into_lane, multiplex, out_of_lane
    from annopipe.graphs.ports import Port
    from annopipe.graphs.regions import region_table
    from annopipe.graphs.reordering import reorder
    from annopipe.graphs.stage_graph import StageGraph
    from annopipe.graphs.stage_graphs import StageGraphs
    from annopipe.graphs.tracing import trace
    from annopipe.ordering.bounds import LowerBound
    from annopipe.ordering.builtin_policies.optimal import Optimal
    from annopipe.ordering.builtin_policies.search import Search
    from annopipe.ordering.plan import OverlapPlan
    from annopipe.ordering.planning import overlap
    from annopipe.ordering.problem import OverlapProblem
    from annopipe.ordering.registry import policies, policy
    from annopipe.pipeline.checkpoints import load_state_dict, state_dict
    from annopipe.pipeline.clipping import clip_grad_norm_
    from annopipe.pipeline.cuts.splitting import split
    from annopipe.pipeline.data_parallel.fully_sharded import from_fully_shard
    from annopipe.pipeline.data_parallel.sharding import shard
    from annopipe.pipeline.pipeline import Pipeline
    from annopipe.pipeline.ties import tied_parameters
    from annopipe.scheduling import placement
    from annopipe.scheduling.action_costs import ActionCosts
    from annopipe.scheduling.actions import Action
    from annopipe.scheduling.generation.explaining import Decision
    from annopipe.scheduling.library import schedule, schedule_spec, schedules
    from annopipe.scheduling.nano_batching.choosing import with_nano_batches
    from annopipe.scheduling.operations import Operation
    from annopipe.scheduling.placement import Placement
    from annopipe.scheduling.schedule_class import Schedule
    from annopipe.scheduling.spec import ScheduleSpec
    from annopipe.simulation import Timeline, simulate
    from annopipe.tuning.candidate import Candidate
    from annopipe.tuning.degrees import Degrees
    from annopipe.tuning.layers import Layer, Piece, Pieces, Recompute
    from annopipe.tuning.model_workload import ModelWorkload
    from annopipe.tuning.priced import TrainingState
    from annopipe.tuning.run_config import RunConfig
    from annopipe.tuning.tuner import tune
    from annopipe.tuning.workload import Workload
    from annopipe.workloads.model_layers import ModelLayers
    from annopipe.workloads.shipped import ModelSpec

_EXPORTS = {
    "ActionCosts": "annopipe.scheduling.action_costs",
    "AnnopipeError": "annopipe.errors",
    "CaptureError": "annopipe.errors",
    "CaptureReport": "annopipe.capturing.report",
    "CapturedGraph": "annopipe.capturing.graphs",
    "capture_graph": "annopipe.capturing.graphs",
    "CompileReport": "annopipe.compiling.report",
    "CompiledGraph": "annopipe.compiling.graphs",
    "compile_graph": "annopipe.compiling.graphs",
    "CostError": "annopipe.errors",
    "GraphError": "annopipe.errors",
    "OrderError": "annopipe.errors",
    "PipelineError": "annopipe.errors",
    "RewriteError": "annopipe.errors",
    "ScheduleError": "annopipe.errors",
    "ScheduleSpec": "annopipe.scheduling.spec",
    "Pipeline": "annopipe.pipeline.pipeline",
    "from_fully_shard": "annopipe.pipeline.data_parallel.fully_sharded",
    "shard": "annopipe.pipeline.data_parallel.sharding",
    "split": "annopipe.pipeline.cuts.splitting",
    "Placement": "annopipe.scheduling.placement",
    "Operation": "annopipe.scheduling.operations",
    "Decision": "annopipe.scheduling.generation.explaining",
    "Action": "annopipe.scheduling.actions",
    "attach": "annopipe.pipeline.upstream.attaching",
    "auxiliary_loss": "annopipe.auxiliary",
    "auxiliary_losses": "annopipe.auxiliary",
    "clip_grad_norm_": "annopipe.pipeline.clipping",
    "load_state_dict": "annopipe.pipeline.checkpoints",
    "state_dict": "annopipe.pipeline.checkpoints",
    "comm": "annopipe.annotate",
    "nano_batch": "annopipe.annotate",
    "nano_batches": "annopipe.annotate",
    "region": "annopipe.annotate",
    "ForeignTag": "annopipe.graphs.foreign_tags",
    "LowerBound": "annopipe.ordering.bounds",
    "NodeCosts": "annopipe.costs.node_costs",
    "Optimal": "annopipe.ordering.builtin_policies",
    "OverlapPlan": "annopipe.ordering.plan",
    "OverlapProblem": "annopipe.ordering.problem",
    "Port": "annopipe.graphs.ports",
    "Schedule": "annopipe.scheduling.schedule_class",
    "Search": "annopipe.ordering.builtin_policies",
    "StageGraph": "annopipe.graphs.stage_graph",
    "StageGraphs": "annopipe.graphs.stage_graphs",
    "Timeline": "annopipe.simulation",
    "UPSTREAM_TAGS": "annopipe.graphs.foreign_tags",
    "bucket": "annopipe.graphs.bucketing",
    "extract": "annopipe.graphs.extraction",
    "forget_operator": "annopipe.graphs.declared_ops",
    "into_lane": "annopipe.graphs.multiplexing",
    "multiplex": "annopipe.graphs.multiplexing",
    "out_of_lane": "annopipe.graphs.multiplexing",
    "overlap": "annopipe.ordering.planning",
    "policies": "annopipe.ordering.registry",
    "policy": "annopipe.ordering.registry",
    "region_table": "annopipe.graphs.regions",
    "register_comm": "annopipe.graphs.declared_ops",
    "register_pure": "annopipe.graphs.declared_ops",
    "reorder": "annopipe.graphs.reordering",
    "schedule": "annopipe.scheduling.library",
    "schedule_spec": "annopipe.scheduling.library",
    "schedules": "annopipe.scheduling.library",
    "simulate": "annopipe.simulation",
    "tied_parameters": "annopipe.pipeline.ties",
    "trace": "annopipe.graphs.tracing",
    "Candidate": "annopipe.tuning.candidate",
    "Cluster": "annopipe.costs.cluster",
    "Degrees": "annopipe.tuning.degrees",
    "Layer": "annopipe.tuning.layers",
    "ModelLayers": "annopipe.workloads.model_layers",
    "ModelSpec": "annopipe.workloads.shipped",
    "ModelWorkload": "annopipe.tuning.model_workload",
    "Piece": "annopipe.tuning.layers",
    "Pieces": "annopipe.tuning.layers",
    "Recompute": "annopipe.tuning.layers",
    "RunConfig": "annopipe.tuning.run_config",
    "TrainingState": "annopipe.tuning.priced",
    "Workload": "annopipe.tuning.workload",
    "tune": "annopipe.tuning.tuner",
    "with_nano_batches": "annopipe.scheduling.nano_batching.choosing",
}

_SUBMODULES = {"costs": "annopipe.costs", "placement": "annopipe.scheduling.placement"}

__all__ = [
    "UPSTREAM_TAGS",
    "Action",
    "ActionCosts",
    "AnnopipeError",
    "Candidate",
    "CaptureError",
    "CaptureReport",
    "CapturedGraph",
    "Cluster",
    "CompileReport",
    "CompiledGraph",
    "CostError",
    "Decision",
    "Degrees",
    "ForeignTag",
    "GraphError",
    "Layer",
    "LowerBound",
    "ModelLayers",
    "ModelSpec",
    "ModelWorkload",
    "NodeCosts",
    "Operation",
    "Optimal",
    "OrderError",
    "OverlapPlan",
    "OverlapProblem",
    "Piece",
    "Pieces",
    "Pipeline",
    "PipelineError",
    "Placement",
    "Port",
    "Recompute",
    "RewriteError",
    "RunConfig",
    "Schedule",
    "ScheduleError",
    "ScheduleSpec",
    "Search",
    "StageGraph",
    "StageGraphs",
    "Timeline",
    "TrainingState",
    "Workload",
    "attach",
    "auxiliary_loss",
    "auxiliary_losses",
    "bucket",
    "capture_graph",
    "clip_grad_norm_",
    "comm",
    "compile_graph",
    "costs",
    "extract",
    "forget_operator",
    "from_fully_shard",
    "into_lane",
    "load_state_dict",
    "multiplex",
    "nano_batch",
    "nano_batches",
    "out_of_lane",
    "overlap",
    "placement",
    "policies",
    "policy",
    "region",
    "region_table",
    "register_comm",
    "register_pure",
    "reorder",
    "schedule",
    "schedule_spec",
    "schedules",
    "shard",
    "simulate",
    "split",
    "state_dict",
    "tied_parameters",
    "trace",
    "tune",
    "with_nano_batches",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(_SUBMODULES[name])
    raise AttributeError(f"module 'annopipe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
