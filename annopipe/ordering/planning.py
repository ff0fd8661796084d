"""``overlap``: from a combined graph, costs and a policy to an OverlapPlan.

The steps: copy the graph (once); describe it as an overlap problem; let the policy order it; agree with the other
ranks; prove the order legal; relink the copy in place. Its code is generated once, when it first runs.
"""

import dataclasses
import operator
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from annopipe.costs import roofline
from annopipe.costs.node_costs import NodeCosts, as_costs
from annopipe.errors import AnnopipeError, GraphError, OrderError
from annopipe.graphs.reordering import check_order, relink
from annopipe.graphs.stage_graph import StageGraph, body, refuse_compiled
from annopipe.ordering.agreement import Choice, agree, most_ranks
from annopipe.ordering.builtin_policies import NEED_COSTS
from annopipe.ordering.counts_group import move_counts
from annopipe.ordering.describing import problem_of
from annopipe.ordering.plan import OverlapPlan, with_costs
from annopipe.ordering.problem import OverlapNode, OverlapProblem, ReasonedOrder
from annopipe.ordering.registry import Policy, PolicyWithOptions, find
from annopipe.ordering.streams import on_streams
from annopipe.ordering.values import values_of

__all__ = ["overlap"]


def overlap(
    graph: StageGraph,
    policy: str | Policy = "auto",
    costs: NodeCosts | Mapping[str, float] | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    counts_group: dist.ProcessGroup | None = None,
    streams: Mapping[str, str] | None = None,
) -> OverlapPlan:
    """Order a combined graph so that its communication hides behind computation. Results cannot change.

    Args:
        graph: what ``ap.multiplex`` returned, or any stage graph; it stays as it is.
        policy: a name from ``ap.policies()``; a pattern, such as ``"B.combine | F.attention ; F.dispatch | B.experts"``
            (``annopipe.ordering.patterns``); a policy with options, such as ``ap.Search(memory_bytes=2**30)``; or a
            function from an ``OverlapProblem`` to an order of its nodes.
        costs: seconds per node, as ``ap.costs.measure`` and ``ap.costs.roofline`` return them; None: the roofline of
            the local device, for the policies that look at costs ("auto", "list", "search", "optimal", "torch") and
            for ``plan.timeline``.
        group: the ranks that must end with the same order: all of them call this and get the order of the first.
        counts_group: another group of the same ranks, to carry the exchanges of counts that the host reads, so that
            they do not queue behind a large transfer.
        streams: the CUDA streams of computation, by selector, such as ``{"W": "side", "F.moe/permute": "side"}``
            (``annopipe.ordering.streams``), beside what tags say. The order of issue stays; a processor has one queue.

    Raises:
        OrderError: unknown policy, a pattern that does not fit (the message shows the place), a selector of streams
            that means nothing, an illegal order (the message names the nodes), or ranks with different collectives.
        CostError: nodes lack a cost, or have none on this device (the message says what to pass).
        GraphError: ``graph`` is no stage graph, or is compiled already.

    >>> import torch, annopipe as ap
    >>> graphs = ap.trace(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    >>> both = ap.multiplex(graphs.forward, graphs.backward, lanes=("F", "B"))
    >>> ap.overlap(both, policy="alternate").policy
    'alternate'
    """
    chosen: list[StageGraph] = []

    def choose() -> Choice:
        with _explained("planning"):
            return prepared()

    def prepared() -> Choice:
        name, function = find(policy)
        chosen.append(_checked_graph(graph).copy())
        problem = problem_of(chosen[0])
        if counts_group is not None:
            problem = move_counts(chosen[0], problem, counts_group)
        if streams:
            problem = on_streams(problem, streams)
        if costs is not None:
            problem = with_costs(problem, as_costs(costs))
        elif isinstance(function, PolicyWithOptions) or function in NEED_COSTS:
            problem = with_costs(problem, roofline(chosen[0]))
        if isinstance(function, PolicyWithOptions):
            problem = _for_options(chosen[0], problem, function, group)
        with _explained(f"policy {name!r}"):
            answer = function(problem)
            order = _indices(problem, name, answer)
        check_order(problem.nodes, order, problem.dependencies)
        return Choice(problem, tuple(order), name, answer.reason if isinstance(answer, ReasonedOrder) else "")

    agreed = agree(choose, group)
    own, nodes = chosen[0], body(chosen[0].graph)
    check_order(nodes, agreed.order, agreed.problem.dependencies)
    relink(own.graph, [nodes[index] for index in agreed.order])
    return OverlapPlan(own, agreed.problem, agreed.order, agreed.policy, agreed.reason)


def _for_options(
    graph: StageGraph, problem: OverlapProblem, policy: PolicyWithOptions, group: dist.ProcessGroup | None
) -> OverlapProblem:
    """The problem with what the policy's options need; refuse those that ranks could not agree about."""
    if not policy.is_repeatable and group is None and (ranks := most_ranks(problem)) > 1:
        raise OrderError(
            f"policy '{policy}' depends on the clock, and {ranks} ranks run the graph's collectives, which need one "
            "order: give ap.overlap their group (the pipeline its plan_group), or a policy without a time limit"
        )
    return problem if policy.memory_bytes is None else dataclasses.replace(problem, values=values_of(graph))


def _checked_graph(graph: Any) -> StageGraph:
    if isinstance(graph, StageGraph):
        refuse_compiled(graph, "overlap")
        return graph
    raise GraphError(
        f"overlap takes a stage graph, got {type(graph).__name__}: pass what ap.multiplex returned, or graphs.forward "
        "or graphs.backward of a trace"
    )


def _indices(problem: OverlapProblem, name: str, order: Sequence[Any]) -> list[int]:
    if order is None:
        raise OrderError(f"policy {name!r} returned nothing: return the problem's nodes in the order to run")
    by_name = {node.name: node.index for node in problem.nodes}
    indices = []
    for item in order:
        found: Any = by_name.get(item, item) if isinstance(item, str) else item
        try:
            indices.append(found.index if isinstance(found, OverlapNode) else operator.index(found))
        except TypeError:
            raise OrderError(
                f"policy {name!r} returned {item!r}: an order has the problem's nodes, their indices or their names"
            ) from None
    return indices


class _explained:  # noqa: N801 - reads as a statement
    """Turn an exception of a user's policy into an OrderError, so that the other ranks hear of it."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, AnnopipeError):
            return
        raise OrderError(f"{self._what} failed: {type(error).__name__}: {error}") from error
