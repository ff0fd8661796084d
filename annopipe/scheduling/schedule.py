"""A pipeline schedule: which rank does what in which order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from annopipe.scheduling import simulating
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import Action
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.programs import Programs
from annopipe.simulation.ranks.timeline import ScheduleTimeline

__all__ = ["Schedule"]


# No slots: the actions are made on first use and kept.
@dataclass(frozen=True, repr=False)
class Schedule:
    """One list of actions per rank; it never changes.

    >>> from annopipe.scheduling import placement
    >>> schedule = Schedule.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> [str(action) for action in schedule.ranks[1]]
    ['1F0', '1B0']
    """

    programs: Programs
    name: str = field(default="", compare=False)

    @classmethod
    def of(
        cls, placement: Placement, microbatches: int, ranks: Sequence[Iterable[Action | str]], name: str = ""
    ) -> "Schedule":
        """Write a schedule by hand: the actions of each rank, or their texts.

        Raises ScheduleError for a text that is no action, or a stage or microbatch that is not there. It is not checked
        further: `check` does that.
        """
        return cls(Programs.of(placement, microbatches, ranks), name)

    @property
    def placement(self) -> Placement:
        """Which rank holds which stage, and what flows where."""
        return self.programs.placement

    @property
    def microbatches(self) -> int:
        """How many microbatches a step has."""
        return self.programs.microbatches

    @cached_property
    def ranks(self) -> tuple[tuple[Action, ...], ...]:
        """The actions of each rank, in order."""
        return tuple(self.programs.actions(rank) for rank in range(self.placement.ranks))

    def simulated(self, costs: ActionCosts | None = None) -> ScheduleTimeline:
        """When every action runs at these costs; `annopipe.simulate` calls it.

        Raises ScheduleError when the schedule cannot finish, CostError when the costs are of other stages.
        """
        return simulating.simulate(self.programs, costs or ActionCosts(), self.name)
