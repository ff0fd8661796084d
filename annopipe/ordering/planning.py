"""``overlap``: from a combined graph, costs and a policy to an OverlapPlan.

The steps: copy the graph (once); describe it as an overlap problem; let the policy order it; agree with the other
ranks; prove the order legal; relink the copy in place. Its code is generated once, when it first runs.
"""

import operator
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from annopipe.costs.node_costs import NodeCosts, as_costs
from annopipe.errors import AnnopipeError, CostError, GraphError, OrderError
from annopipe.graphs import meta
from annopipe.graphs.dependencies import predecessors
from annopipe.graphs.ops import group_name, is_declared, launch_of
from annopipe.graphs.regions import place
from annopipe.graphs.reordering import check_order, relink
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.ordering.agreement import Choice, agree
from annopipe.ordering.builtin_policies import list_
from annopipe.ordering.plan import OverlapPlan, with_costs
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from annopipe.ordering.registry import Policy, find

__all__ = ["overlap", "problem_of"]


def overlap(
    graph: StageGraph,
    policy: str | Policy = "list",
    costs: NodeCosts | Mapping[str, float] | None = None,
    group: dist.ProcessGroup | None = None,
) -> OverlapPlan:
    """Order a combined graph so that its communication hides behind computation. Results cannot change.

    Args:
        graph: what ``ap.multiplex`` returned, or any stage graph; it stays as it is.
        policy: a name from ``ap.policies()``, or a function from an ``OverlapProblem`` to an order of its nodes.
        costs: seconds per node; needed by "list", by ``plan.timeline`` and by ``plan.lower_bound``.
        group: the ranks that must end with the same order: all of them call this and get the order of the first.

    Raises:
        OrderError: unknown policy, an illegal order (the message names the nodes), or ranks with different collectives.
        CostError: the policy needs costs and there are none, or nodes lack one.
        GraphError: ``graph`` is no stage graph.

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
        if costs is not None:
            problem = with_costs(problem, as_costs(costs))
        elif function is list_:
            raise CostError(
                f"policy {name!r} needs costs: pass costs=ap.costs.measure(graph, values) or ap.costs.load(path), "
                "or use a policy without costs, such as 'alternate'"
            )
        with _explained(f"policy {name!r}"):
            order = _indices(problem, name, function(problem))
        check_order(problem.nodes, order, problem.dependencies)
        return Choice(problem, tuple(order), name)

    agreed = agree(choose, group)
    own, nodes = chosen[0], body(chosen[0].graph)
    check_order(nodes, agreed.order, agreed.problem.dependencies)
    relink(own.graph, [nodes[index] for index in agreed.order])
    return OverlapPlan(own, agreed.problem, agreed.order, agreed.policy)


def problem_of(graph: StageGraph) -> OverlapProblem:
    """The overlap problem of a graph, without costs: its nodes in program order and what must come before each."""
    nodes = body(graph.graph)
    places = [meta.placement(node) for node in nodes]
    if None in places:
        place(graph)
    index = {node: number for number, node in enumerate(nodes)}
    described = []
    for number, node in enumerate(nodes):
        at = places[number] or meta.placed(node)
        launch = launch_of(node) if at.kind == "wait" else None
        waits = launch is not None and launch in index
        described.append(
            OverlapNode(
                index=number,
                name=at.key,
                region=at.region,
                kind="compute" if at.kind == "wait" and not waits else at.kind,
                lane=at.lane,
                phase=at.phase,
                queue=group_name(node) if at.kind == "launch" else "",
                launch=index[launch] if launch is not None and waits else -1,
                operation=_operation(node) if at.kind == "launch" else "",
            )
        )
    before = tuple(tuple(earlier) for earlier in predecessors(nodes))
    return OverlapProblem(tuple(described), before, has_costs=False)


def _checked_graph(graph: Any) -> StageGraph:
    if isinstance(graph, StageGraph):
        return graph
    raise GraphError(
        f"overlap takes a stage graph, got {type(graph).__name__}: pass what ap.multiplex returned, or graphs.forward "
        "or graphs.backward of a trace"
    )


def _operation(node: fx.Node) -> str:
    """A collective and what all ranks must have in common: its data type, reduction and the like."""
    fixed = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, str) and a != group_name(node)]
    fake = meta.value(node)
    texts = [str(node.target), str(getattr(fake, "dtype", ""))]
    uneven = "all_to_all" in texts[0] or "exchange" in texts[0] or is_declared(node)
    if not uneven and isinstance(fake, torch.Tensor):
        texts += [
            str(extent) for extent in fake.shape if isinstance(extent, int)
        ]  # other shapes would not fit together
    return " ".join([*texts, *fixed])


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
