"""Combined graphs for the actions that a schedule overlaps: one plan for every distinct pair, made before any step.

The graph of one action is planned as well where a part of it runs in nano-batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from annopipe.capturing.graphs import CapturedGraph
from annopipe.compiling.graphs import CompiledGraph
from annopipe.errors import PipelineError
from annopipe.ordering.combining import Part, StageNodeCosts, combine, has_nano_batches, lanes_of
from annopipe.ordering.registry import Policy
from annopipe.pipeline.stages.graph_call import GraphCall
from annopipe.pipeline.stages.stage import LocalStage
from annopipe.scheduling.actions import COMPUTE, Action

__all__ = ["Combined", "Parts", "combinations", "parts_of"]

# Kind and stage of each part; of one that runs as nano-batches, their number, too.
Parts = tuple[tuple[str, int] | tuple[str, int, int], ...]


def parts_of(action: Action) -> Parts:
    """What decides which combined graph an action runs.

    >>> parts_of(Action.parse("(0F1;3B0/2)OVERLAP_F_B")), parts_of(Action.parse("0F1"))
    ((('F', 0), ('B', 3, 2)), (('F', 0),))
    """
    return tuple(
        (part.kind, part.stage, part.nano_batches) if part.nano_batches > 1 else (part.kind, part.stage)
        for part in action.singles
    )


class Combined:
    """The combined graph of some actions, in the order that the policy chose.

    Attributes:
        plan: the order, with its simulated timeline.

    Args:
        parts: the graphs, one lane each.
        policy, costs, group: as for ``combine``.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        policy: str | Policy,
        costs: StageNodeCosts | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.plan = combine(parts, policy, costs, group)
        self.plan.check_ranks()
        self._lanes = lanes_of([part.kind for part in parts])
        self._call = GraphCall(self.plan.executable, self._lanes)

    def run_compiled(self, graph: CompiledGraph) -> None:
        """Run the plan's graph with compiled stretches from now on."""
        self.plan = self.plan.with_compiled(graph)
        self._call = GraphCall(self.plan.executable, self._lanes)

    def run_captured(self, graph: CapturedGraph) -> None:
        """Run a captured form of the plan's graph from now on."""
        self.plan = self.plan.with_captured(graph)
        self._call = GraphCall(self.plan.executable, self._lanes)

    def __call__(self, values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of each lane, in the order of the lanes. The dictionaries of values are empty afterwards."""
        return self._call(*values)


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
    first = {parts_of(action): action for action in actions if action.parts or action.kind in COMPUTE}
    # A function is asked for the graph of each nano-batch; costs by node are those of whole microbatches.
    scaled = costs is not None and not callable(costs)
    graphs = {parts: _lanes(action, stages, scaled=scaled) for parts, action in first.items()}
    for action in first.values():
        _check_buffers(action.parts, stages)
    return {
        parts: Combined(found, policy, costs, group)
        for parts, found in graphs.items()
        if len(found) > 1 or (found and (len(parts) > 1 or has_nano_batches(found[0].graph)))
    }


def _lanes(action: Action, stages: Mapping[int, LocalStage], *, scaled: bool) -> list[Part]:
    """The graphs of an action; of a backward there may be none."""
    found = []
    for part in action.singles:
        lanes = stages[part.stage].lanes(part.microbatch or 0)
        for kept, fraction in zip(lanes.kept, lanes.fractions, strict=True):
            if (graph := kept.graphs.of_kind(part.kind)) is not None:
                found.append(Part(part.kind, part.stage, graph, fraction if scaled else 1.0))
    return found


def _check_buffers(parts: Sequence[Action], stages: Mapping[int, LocalStage]) -> None:
    """Two forwards in one graph would both start from the same buffers."""
    forwards = [part.stage for part in parts if part.kind == "F"]
    for stage in forwards:
        updated = sorted(p.source for p in stages[stage].graphs.forward.outputs if p.role == "buffer_update")
        if updated and forwards.count(stage) > 1:
            raise PipelineError(
                f"the schedule combines two forwards of stage {stage}, which updates its buffer {updated[0]}: one "
                "update would be lost; take a schedule that runs them one after the other"
            )
