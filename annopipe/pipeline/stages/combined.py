"""Combined graphs for the actions that a schedule overlaps: one plan for every distinct pair, made before any step.

The graph of one action is planned as well where a part of it runs in nano-batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from annopipe.errors import PipelineError
from annopipe.graphs.stage_graph import StageGraph
from annopipe.ordering.combining import Part, StageNodeCosts, combine, has_nano_batches, lanes_of
from annopipe.ordering.registry import Policy
from annopipe.pipeline.stages.graph_call import GraphCall
from annopipe.pipeline.stages.stage import LocalStage
from annopipe.scheduling.actions import COMPUTE, Action

__all__ = ["Combined", "Parts", "combinations", "parts_of"]

Parts = tuple[tuple[str, int], ...]


def parts_of(action: Action) -> Parts:
    """What decides which combined graph an action runs: kind and stage of each part.

    >>> parts_of(Action.parse("(0F1;3B0)OVERLAP_F_B"))
    (('F', 0), ('B', 3))
    >>> parts_of(Action.parse("0F1"))
    (('F', 0),)
    """
    return tuple((part.kind, part.stage) for part in action.parts or (action,))


class Combined:
    """The combined graph of some actions, in the order that the policy chose.

    Attributes:
        plan: the order, with its simulated timeline.
    """

    def __init__(
        self,
        parts: Parts,
        graphs: Sequence[StageGraph | None],
        policy: str | Policy,
        costs: StageNodeCosts | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        present = [
            (index, Part(kind, stage, graph))
            for index, ((kind, stage), graph) in enumerate(zip(parts, graphs, strict=True))
            if graph is not None
        ]
        self._present = [index for index, _ in present]
        self.plan = combine([part for _, part in present], policy, costs, group)
        self.plan.check_ranks()
        self._call = GraphCall(self.plan.graph, lanes_of([part.kind for _, part in present]))

    def __call__(self, values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of each part, in the order of the parts; empty for a part without a graph.

        The dictionaries of values are empty afterwards.
        """
        found = iter(self._call(*[values[index] for index in self._present]))
        return [next(found) if index in self._present else {} for index in range(len(values))]


def combinations(
    actions: Iterable[Action],
    stages: Mapping[int, LocalStage],
    policy: str | Policy,
    costs: StageNodeCosts | None,
    group: dist.ProcessGroup | None,
) -> dict[Parts, Combined]:
    """One combined graph for every distinct combination, in the order in which a rank's actions have them first.

    Single actions whose graph has nano-batches count as combinations.

    None for combinations of backwards in which nothing is differentiated.

    Raises PipelineError for two forwards of a stage that updates buffers.
    """
    wanted = dict.fromkeys(parts_of(action) for action in actions if action.parts or action.kind in COMPUTE)
    graphs = {parts: [stages[stage].graphs.of_kind(kind) for kind, stage in parts] for parts in wanted}
    for parts in wanted:
        _check_buffers(parts, stages)
    return {
        parts: Combined(parts, found, policy, costs, group)
        for parts, found in graphs.items()
        if (any(graph is not None for graph in found) if len(parts) > 1 else has_nano_batches(found[0]))
    }


def _check_buffers(parts: Parts, stages: Mapping[int, LocalStage]) -> None:
    """Two forwards in one graph would both start from the same buffers."""
    for kind, stage in parts:
        updated = sorted(p.source for p in stages[stage].graphs.forward.outputs if p.role == "buffer_update")
        if kind == "F" and updated and parts.count((kind, stage)) > 1:
            raise PipelineError(
                f"the schedule combines two forwards of stage {stage}, which updates its buffer {updated[0]}: one "
                "update would be lost; take a schedule that runs them one after the other"
            )
