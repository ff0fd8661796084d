"""What a search hands out: a schedule with its timeline and how far it is from the bound, ready to run or to save."""

from dataclasses import dataclass
from os import PathLike

from annopipe.scheduling.schedule_class import Schedule
from annopipe.simulation.ranks.timeline import ScheduleTimeline
from annopipe.tuning.account import Account
from annopipe.tuning.degrees import Degrees
from annopipe.tuning.finishing import step_time
from annopipe.tuning.run_config import RunConfig
from annopipe.tuning.trial import Trial
from annopipe.tuning.workload import Workload

__all__ = ["Candidate"]


@dataclass(frozen=True, eq=False, repr=False)
class Candidate:
    """One result of ``ap.tune``.

    Attributes:
        work: what was searched for.
        trial: the stages, where they are, and the rules of the order.
        schedule: the order.
        timeline: when everything runs.
        bound: what no schedule of the workload can beat.
        degrees: how the devices of a cluster are shared out, where that was searched.
    """

    work: Workload
    trial: Trial
    schedule: Schedule
    timeline: ScheduleTimeline
    bound: float
    degrees: Degrees | None = None

    @classmethod
    def of(cls, work: Workload, trial: Trial, bound: float, degrees: Degrees | None = None) -> "Candidate":
        """Build and simulate a trial."""
        return cls(work, trial, *trial.simulated(work), bound, degrees)

    def __repr__(self) -> str:
        degrees = f"{self.degrees}; " if self.degrees else ""
        return f"Candidate({degrees}{self.name}: {self.step:g}, {self.gap:.3f} of the bound)"

    @property
    def name(self) -> str:
        """The placement and the rules; and whether actions were moved then."""
        return self.trial.name

    @property
    def gap(self) -> float:
        """The length of the step over the bound; 1 is the best there can be."""
        return self.step / self.bound

    @property
    def step(self) -> float:
        """The length of the step: the timeline's, and at its end the sum of gradients over data-parallel ranks."""
        return step_time(self.work, self.trial.layout, self.timeline)

    @property
    def account(self) -> Account:
        """Where the time goes."""
        return Account.of(self.timeline)

    @property
    def config(self) -> RunConfig:
        """What ``ap.Pipeline.from_config`` loads, when it is saved."""
        layout = self.trial.layout
        return RunConfig(self.schedule, layout.bounds, layout.recomputed, degrees=self.degrees)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the config, and the schedule as CSV of the same name beside it.

        Raises PipelineError for a name that does not end in ".toml", AnnopipeError when a file cannot be written.
        """
        self.config.save(path)
