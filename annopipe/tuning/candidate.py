"""What a search hands out: a schedule with its timeline and how far it is from the bound, ready to run or to save."""

from dataclasses import dataclass
from os import PathLike

from annopipe.scheduling.schedule_class import Schedule
from annopipe.simulation.ranks.timeline import ScheduleTimeline
from annopipe.tuning.account import Account
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
    """

    work: Workload
    trial: Trial
    schedule: Schedule
    timeline: ScheduleTimeline
    bound: float

    @classmethod
    def of(cls, work: Workload, trial: Trial, bound: float) -> "Candidate":
        """Build and simulate a trial."""
        return cls(work, trial, *trial.simulated(work), bound)

    def __repr__(self) -> str:
        return f"Candidate({self.name}: {self.timeline.makespan:g}, {self.gap:.3f} of the bound)"

    @property
    def name(self) -> str:
        """The placement and the rules; and whether actions were moved then."""
        return self.trial.name

    @property
    def gap(self) -> float:
        """The length of the step over the bound; 1 is the best there can be."""
        return self.timeline.makespan / self.bound

    @property
    def account(self) -> Account:
        """Where the time goes."""
        return Account.of(self.timeline)

    @property
    def config(self) -> RunConfig:
        """What ``ap.Pipeline.from_config`` loads, when it is saved."""
        layout = self.trial.layout
        return RunConfig(self.schedule, layout.bounds, layout.recomputed)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the config, and the schedule as CSV of the same name beside it.

        Raises PipelineError for a name that does not end in ".toml", AnnopipeError when a file cannot be written.
        """
        self.config.save(path)
