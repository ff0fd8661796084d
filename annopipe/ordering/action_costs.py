"""``ap.costs.actions``: how long a schedule's actions take, from the graphs of the stages and the costs of their nodes.

F, B, I and W are simulated in their graph's own order, what runs in several lanes in the order of its plan: as the
runtime runs them. Lanes are planned when the schedule first has them. A nano-batch is the stage's own graph with an
equal share of the time, see ``part_costs``.
"""

import functools
import math
from collections.abc import Mapping, Sequence

from annopipe.costs.stored import StoredBytes, stored_bytes
from annopipe.errors import CostError
from annopipe.graphs.stage_graph import StageGraph
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.ordering.combining import Part, StageNodeCosts, combine, has_nano_batches, part_costs
from annopipe.ordering.describing import problem_of
from annopipe.ordering.plan import with_costs
from annopipe.ordering.registry import Policy
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import COMPUTE, Action
from annopipe.simulation import ProgramTimeline, run

__all__ = ["actions"]

_Kinds = tuple[tuple[str, int, int], ...]  # kind, stage and number of nano-batches of each part


def actions(
    graphs: StageGraphs | Mapping[int, StageGraphs],
    node_costs: StageNodeCosts,
    policy: str | Policy = "auto",
    *,
    link_bytes_per_s: float = math.inf,
    latency: float = 0.0,
    skew: float = 1.0,
) -> ActionCosts:
    """The costs of a schedule's actions, in seconds and bytes.

    Args:
        graphs: what ``ap.trace`` returned: by stage, from 0 on, or one for all stages.
        node_costs: seconds per node: one for all stages, by stage, or a function of the graph, such as
            ``ap.costs.roofline``. Keys are those of combined graphs, "F.mm" and "B.mm", or bare names.
        policy: how combined graphs are ordered, as in ``ap.Pipeline``.
        link_bytes_per_s: what a link between two ranks carries; messages take no time if left out.
        latency: seconds from the end of sending a message to its arrival.
        skew: for what is kept in memory, that of ``ap.costs.roofline``: how many times its even share of the rows this
            rank gets.

    Raises:
        CostError: stages are not 0, 1, 2 and so on; a node has no cost; a rate is not positive; a skew below 1; at the
            first combination that cannot be planned, what ``ap.overlap`` raises.

    >>> import torch, annopipe as ap
    >>> graphs = ap.trace(torch.nn.Linear(2, 2, bias=False), (torch.ones(1, 2),))
    >>> costs = ap.costs.actions(graphs, lambda graph: ap.costs.roofline(graph, "h100"))
    >>> ap.simulate(ap.schedule("dualpipev", ranks=2, microbatches=4), costs).makespan > 8 * costs.F
    True
    """
    if not link_bytes_per_s > 0:
        raise CostError(f"link_bytes_per_s={link_bytes_per_s!r}: give bytes per second, more than 0")
    stages = _Stages(graphs, node_costs, policy)
    stored = [stored_bytes(found, skew=skew) for found in stages.all]
    alone = {kind: [stages.timeline(kind, stage) for stage in range(len(stages.all))] for kind in COMPUTE}
    seconds = {kind: _per_stage(graphs, [_makespan(t) for t in found]) for kind, found in alone.items()}
    exposed = {kind: _per_stage(graphs, [_exposed(t) for t in found]) for kind, found in alone.items()}
    communication = {kind: _per_stage(graphs, [_communication(t) for t in found]) for kind, found in alone.items()}
    return ActionCosts(
        F=seconds["F"],
        I=seconds["I"],
        W=seconds["W"],
        B=seconds["B"],
        FB=stages.pair_seconds,
        overlap=stages.combined_seconds,
        send=_per_stage(graphs, [of_stage.output / link_bytes_per_s for of_stage in stored]),
        latency=latency,
        activation=_per_stage(graphs, [of_stage.activation for of_stage in stored]),
        kept_for_weight=_per_stage(graphs, [_kept_share(of_stage) for of_stage in stored]),
        parameters=_per_stage(graphs, [of_stage.parameters for of_stage in stored]),
        exposed={**exposed, "FB": stages.pair_exposed},
        communication=communication,
        inside=stages.inside,
    )


class _Stages:
    """The simulated timelines of stages; those of combinations are kept."""

    def __init__(
        self,
        graphs: StageGraphs | Mapping[int, StageGraphs],
        node_costs: StageNodeCosts,
        policy: str | Policy,
    ) -> None:
        self._same = isinstance(graphs, StageGraphs)
        by_stage = {0: graphs} if isinstance(graphs, StageGraphs) else dict(graphs)
        if not by_stage or sorted(by_stage) != list(range(len(by_stage))):
            raise CostError(f"graphs are of stages {sorted(by_stage)}: give those of all stages, from 0 on")
        self.all = [by_stage[stage] for stage in range(len(by_stage))]
        self._node_costs, self._policy = node_costs, policy
        self._first = _first_alike(self.all, node_costs)
        self._combined = functools.cache(self._simulate)

    def timeline(self, kind: str, stage: int) -> ProgramTimeline | None:
        """One graph in its own order, or that of its plan if it has nano-batches; None without a graph."""
        graph = self._graph(kind, stage)
        if graph is None:
            return None
        if has_nano_batches(graph):
            return self._combined(((kind, self._index(stage), 1),))
        problem = with_costs(problem_of(graph), part_costs(Part(kind, stage, graph), self._node_costs))
        return run(problem.program(range(len(problem.nodes))), problem.network)

    def pair_seconds(self, forward: int, backward: int) -> float:
        """The time of a forward with a backward, by their stages."""
        return _makespan(self._combined((("F", self._index(forward), 1), ("B", self._index(backward), 1))))

    def pair_exposed(self, forward: int, backward: int) -> float:
        """Its communication that nothing hides."""
        return _exposed(self._combined((("F", self._index(forward), 1), ("B", self._index(backward), 1))))

    def combined_seconds(self, action: Action) -> float:
        """The time of anything in several lanes."""
        return _makespan(self._of(action))

    def inside(self, action: Action) -> tuple[float, float]:
        """The communication inside anything in several lanes, and the part that nothing hides."""
        timeline = self._of(action)
        return _communication(timeline), _exposed(timeline)

    def _of(self, action: Action) -> ProgramTimeline | None:
        parts = action.singles
        return self._combined(tuple((part.kind, self._index(part.stage), part.nano_batches) for part in parts))

    def _simulate(self, parts: _Kinds) -> ProgramTimeline | None:
        present = [
            Part(kind, stage, graph, 1.0 / count)
            for kind, stage, count in parts
            if (graph := self._graph(kind, stage)) is not None
            for _ in range(count)
        ]
        return combine(present, self._policy, self._node_costs).timeline if present else None

    def _graph(self, kind: str, stage: int) -> StageGraph | None:
        return self.all[stage].of_kind(kind)

    def _index(self, stage: int) -> int:
        if self._same:
            return 0
        if stage >= len(self.all):
            raise CostError(f"there are graphs of {len(self.all)} stages and none of stage {stage}")
        return self._first[stage]


def _first_alike(graphs: Sequence[StageGraphs], node_costs: StageNodeCosts) -> list[int]:
    """For each stage the first that has the same graphs and the same costs, so that it is planned once."""
    own = [
        id(node_costs[stage]) if isinstance(node_costs, Mapping) and stage in node_costs else 0
        for stage in range(len(graphs))
    ]
    keys = [(id(found), cost) for found, cost in zip(graphs, own, strict=True)]
    return [keys.index(key) for key in keys]


def _per_stage(graphs: StageGraphs | Mapping[int, StageGraphs], values: list[float]) -> float | list[float]:
    return values[0] if isinstance(graphs, StageGraphs) else values


def _makespan(timeline: ProgramTimeline | None) -> float:
    return timeline.makespan if timeline is not None else 0.0


def _exposed(timeline: ProgramTimeline | None) -> float:
    return timeline.exposed_comm if timeline is not None else 0.0


def _communication(timeline: ProgramTimeline | None) -> float:
    return timeline.comm_time if timeline is not None else 0.0


def _kept_share(stored: StoredBytes) -> float:
    """Of a forward that leaves nothing no share can be told; what its backward-input leaves is not counted."""
    return stored.kept_for_weight / stored.activation if stored.activation else 0.0
