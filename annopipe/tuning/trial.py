"""One thing that a search tries: a layout with rules (or a library schedule), generated and simulated."""

from dataclasses import dataclass, field, replace
from typing import Any

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.library import schedule_spec
from annopipe.scheduling.nano_batching.choosing import with_nano_batches
from annopipe.scheduling.schedule_class import Schedule
from annopipe.scheduling.spec import ScheduleSpec
from annopipe.simulation.ranks.timeline import ScheduleTimeline
from annopipe.tuning.finishing import step_time
from annopipe.tuning.layout import Layout
from annopipe.tuning.partition import Family
from annopipe.tuning.stage_costs import action_costs
from annopipe.tuning.workload import Workload

__all__ = ["Moved", "Rules", "Score", "Trial", "scored", "scored_schedule"]

_NANO_EFFORT = 100000


@dataclass(frozen=True)
class Rules:
    """What ``ScheduleSpec`` is given beside the placement; see there.

    Attributes:
        nano_batches: into how many a microbatch may be split where that makes the step shorter; 1: none is.
        library: the name of a library schedule, whose own rules these are then.
        options: of the library schedule.
    """

    priority: tuple[str, ...] = ("I", "F", "W")
    traversal: str = "depth-first"
    in_flight: int | tuple[int, ...] | None = None
    pair: tuple[str, str] | None = None
    split_backward: bool | str | None = None
    nano_batches: int = 1
    library: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        if self.library:
            given = ", ".join(f"{name}={value}" for name, value in self.options)
            return f"{self.library}({given})" if given else self.library
        said = [" before ".join(self.priority)]
        if self.pair:
            said.append(f"{self.pair[0]} with {self.pair[1]}")
        if self.traversal != "depth-first":
            said.append(self.traversal)
        if self.in_flight is not None:
            limits = self.in_flight if isinstance(self.in_flight, tuple) else (self.in_flight,)
            said.append(f"{'/'.join(map(str, dict.fromkeys(limits) if len(set(limits)) == 1 else limits))} in flight")
        if self.nano_batches > 1:
            said.append(f"{self.nano_batches} nano-batches")
        return ", ".join(said)


@dataclass(frozen=True)
class Moved:
    """The order that came of moving actions.

    Attributes:
        start: the name of what they were moved in.
        ranks: the text of every action of every rank.
    """

    start: str
    ranks: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Trial:
    """A layout under rules.

    Attributes:
        family: which the layout is of.
        layout: the layers of the stages.
        rules: how the order is made.
        moved: the order itself instead, where actions of one that rules made were moved.
    """

    family: Family
    layout: Layout
    rules: Rules = field(default_factory=Rules)
    moved: Moved | None = None

    @property
    def name(self) -> str:
        """The placement and the rules."""
        if self.moved:
            return f"{self.moved.start}, actions moved"
        return str(self.rules) if self.rules.library else f"{self.layout.placement.name}: {self.rules}"

    def with_moved(self, moved: Moved) -> "Trial":
        """The same layout in an order that came of moving actions; it is no longer one of the library."""
        return replace(self, rules=replace(self.rules, library="", options=()), moved=moved)

    def costs(self, work: Workload) -> ActionCosts:
        """Of the layout's actions."""
        return action_costs(work, self.layout)

    def simulated(self, work: Workload) -> tuple[Schedule, ScheduleTimeline]:
        """The schedule, and when everything in it runs.

        Raises ScheduleError when its limits leave no way to finish.
        """
        costs = self.costs(work)
        if self.moved:
            placement = self.layout.placement
            schedule = Schedule.of(placement, work.microbatches, self.moved.ranks, placement.name)
            return schedule, schedule.simulated(costs)
        schedule = self._spec(work, costs).build()
        if self.rules.nano_batches > 1:
            schedule = with_nano_batches(schedule, costs, self.rules.nano_batches, effort=_NANO_EFFORT)
        return schedule, schedule.simulated(costs)

    def _spec(self, work: Workload, costs: ActionCosts) -> ScheduleSpec:
        rules = self.rules
        if rules.library:
            return schedule_spec(rules.library, work.ranks, work.microbatches, **dict(rules.options))
        return ScheduleSpec(
            self.layout.placement,
            work.microbatches,
            priority=rules.priority,
            split_backward=rules.split_backward,
            traversal=rules.traversal,
            in_flight=rules.in_flight,
            memory=self._activation_limit(work, costs),
            pair=rules.pair,
            costs=costs,
            name=self.layout.placement.name,
        )

    def _activation_limit(self, work: Workload, costs: ActionCosts) -> tuple[float, ...] | None:
        """What is left of each rank's memory for activations."""
        if work.memory is None:
            return None
        placement = self.layout.placement
        limits = []
        for stages in placement.stages_on:
            weights = {placement.weights_of[stage]: stage for stage in stages}
            limits.append(work.memory - sum(costs.parameters_of(stage) for stage in weights.values()))
        if min(limits) < 0.0:
            raise ScheduleError("the parameters of a rank alone are more than its memory")
        return tuple(limits)


@dataclass(frozen=True, order=True)
class Score:
    """What a trial came to; the smaller, the better.

    Attributes:
        makespan: of the step with the sum of gradients at its end; infinite where the trial cannot be run.
        memory: the most that a rank holds.
        actions: how many actions were generated, which is the effort.
        why: what the trial failed of.
    """

    makespan: float
    memory: float
    actions: int
    why: str = ""


def scored(work: Workload, trial: Trial) -> Score:
    """Generate and simulate a trial; what cannot be, or holds too much, is infinitely long."""
    return scored_schedule(work, trial)[0]


def scored_schedule(work: Workload, trial: Trial) -> tuple[Score, Schedule | None]:
    """The score of a trial and its schedule; None where there is none."""
    effort = 3 * trial.layout.placement.stages * work.microbatches
    try:
        schedule, timeline = trial.simulated(work)
    except ScheduleError as error:
        return Score(float("inf"), float("inf"), effort, str(error)), None
    memory = max(timeline.peaks)
    count = sum(map(len, schedule.programs.ranks))
    if work.memory is not None and memory > work.memory * (1 + 1e-9):
        return Score(float("inf"), memory, count, f"it holds {memory:g} of {work.memory:g}"), schedule
    return Score(step_time(work, trial.layout, timeline), memory, count), schedule
