"""Exchanges of counts on a process group of their own, so that they do not queue behind a large transfer."""

import dataclasses

import torch.distributed as dist

from annopipe.errors import OrderError
from annopipe.graphs.ops import set_group_name
from annopipe.graphs.process_groups import group_by_name
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.ordering.problem import OverlapProblem

__all__ = ["move_counts"]


def move_counts(graph: StageGraph, problem: OverlapProblem, group: dist.ProcessGroup) -> OverlapProblem:
    """Move every exchange of counts of ``graph`` to ``group``, in place; returns the problem as it then is.

    Raises:
        OrderError: ``group`` is no process group of this rank, or has other ranks than the group of an exchange.
    """
    if not isinstance(group, dist.ProcessGroup):
        raise OrderError(f"counts_group={group!r}: give a process group, as dist.new_group returns to its members")
    nodes, described = body(graph.graph), list(problem.nodes)
    name, ranks = str(group.group_name), dist.get_process_group_ranks(group)
    for index in sorted(problem.count_exchanges):
        own = dist.get_process_group_ranks(group_by_name(described[index].queue))
        if own != ranks:
            raise OrderError(
                f"{described[index].name} exchanges counts between ranks {own}, and counts_group has ranks {ranks}: "
                "make it with dist.new_group of the same ranks in the same sequence"
            )
        set_group_name(nodes[index], name)
        described[index] = dataclasses.replace(described[index], queue=name)
    return dataclasses.replace(problem, nodes=tuple(described))
