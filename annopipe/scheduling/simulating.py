"""Simulate a schedule: its programs and the costs of its actions become the flat lists that the simulation takes.

A schedule without messages is simulated as if every result went to the other ranks as soon as it is there. A receive
takes no time: the action that needs the message waits for it. A message goes over every edge between stages on
different ranks, so that a stage with two successors elsewhere sends two. An operation on a resource of its own runs
beside the computation, from when its rank comes to it; what it precedes waits for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from annopipe.errors import CostError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.encoding import Tables
from annopipe.scheduling.numbering import Numbering
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.programs import Programs
from annopipe.simulation.ranks.programs import Label, RankPrograms
from annopipe.simulation.ranks.timeline import ScheduleTimeline

__all__ = ["rank_programs", "simulate"]


def simulate(
    programs: Programs, costs: ActionCosts, operations: Sequence[Operation] = (), name: str = ""
) -> ScheduleTimeline:
    """When every action of a schedule runs, at these costs.

    Raises ScheduleError when the schedule cannot finish, CostError when the costs are of other stages or too large.

    >>> from annopipe.scheduling import placement
    >>> from annopipe.scheduling.action_costs import table
    >>> programs = Programs.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> simulate(programs, table(F=1.0, B=2.0, latency=0.25)).makespan
    6.5
    """
    timeline = ScheduleTimeline.of(rank_programs(programs, costs, operations, name))
    if timeline.makespan == math.inf:
        raise CostError("the times add up to more than a number can hold; give smaller ones, in a larger unit")
    return timeline


def rank_programs(
    programs: Programs, costs: ActionCosts, operations: Sequence[Operation] = (), name: str = ""
) -> RankPrograms:
    """What the simulation takes.

    Raises CostError when the costs are of other stages.
    """
    if not isinstance(costs, ActionCosts):
        raise CostError(f"costs is {costs!r}; make them with annopipe.costs.table")
    costs.refuse_other_stages(programs.numbering)
    tables = Tables(programs, costs, operations)
    placement, numbering = programs.placement, programs.numbering
    inside = _Inside(numbering, costs)
    return RankPrograms(
        ranks=tables.ranks,
        durations=tables.durations,
        first=tables.first,
        second=tables.second,
        link=tables.link,
        links=[(sender, receiver) for sender, receiver, _ in tables.lines],
        latencies=[0.0 if resource else costs.latency for *_, resource in tables.lines],
        label=_Labels(placement, numbering, tables.copied).label,
        more=tables.more,
        parts=tables.parts,
        at_start=tables.at_start,
        at_end=tables.at_end,
        parameters=[_parameters(placement, costs, rank) for rank in range(placement.ranks)],
        exposed=inside.exposed if costs.exposed or costs.inside else None,
        communication=inside.communication if costs.exposed or costs.communication or costs.inside else None,
        name=name,
    )


def _parameters(placement: Placement, costs: ActionCosts, rank: int) -> float:
    """Stages of one rank with the same weights keep them once."""
    weights = {placement.weights_of[stage]: stage for stage in reversed(placement.stages_on[rank])}
    return sum(costs.parameters_of(stage) for stage in weights.values())


@dataclass(frozen=True)
class _Labels:
    placement: Placement
    numbering: Numbering
    copied: Sequence[int]

    def label(self, number: int) -> Label:
        """What an action is called; a second message of a sending action is called like the first."""
        size = self.numbering.size
        action = self.numbering.action(number if number < size else self.copied[number - size])
        front = action.parts[0] if action.parts else action
        return Label(
            str(action),
            action.kind,
            front.stage,
            front.microbatch,
            _shade(self.placement, front.stage),
            tuple(map(str, action.parts)),
        )


def _shade(placement: Placement, stage: int) -> int:
    """The how-manieth stage of its rank a stage is; those of a second copy of the model come behind the first's."""
    before = placement.stages_on[placement.rank_of[stage]]
    return placement.chunk_of[stage] + sum(placement.copy_of[other] < placement.copy_of[stage] for other in before)


@dataclass(frozen=True)
class _Inside:
    numbering: Numbering
    costs: ActionCosts

    def exposed(self, number: int) -> float:
        """The communication inside an action that nothing hides."""
        return self.costs.exposed_of(self.numbering.action(number))

    def communication(self, number: int) -> float:
        """The communication inside an action, hidden or not."""
        return self.costs.communication_of(self.numbering.action(number))
