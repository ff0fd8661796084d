"""Where the time of a step goes, on average over the ranks: five parts whose sum is the makespan."""

import math
from dataclasses import asdict, dataclass

from annopipe.simulation.ranks.timeline import ScheduleTimeline

__all__ = ["Account"]


@dataclass(frozen=True)
class Account:
    """The parts of a step's makespan, each the mean over the ranks, in the unit of the costs.

    Attributes:
        computing: in actions, without what follows.
        exposed: communication inside actions that nothing hides.
        filling: before a rank's first action: the pipeline fills.
        waiting: between its actions.
        draining: after its last action: other ranks still work.
    """

    computing: float
    exposed: float
    filling: float
    waiting: float
    draining: float

    @classmethod
    def of(cls, timeline: ScheduleTimeline) -> "Account":
        """The account of a simulated step.

        >>> from annopipe.scheduling import placement, table
        >>> from annopipe.scheduling.schedule_class import Schedule
        >>> naive = Schedule.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
        >>> Account.of(naive.simulated(table(F=1.0, B=2.0)))
        Account(computing=3.0, exposed=0.0, filling=0.5, waiting=1.5, draining=1.0)
        """
        programs, starts, ends = timeline.programs, timeline.starts, timeline.ends
        parts = []
        for numbers, busy in zip(timeline.computations, timeline.busy, strict=True):
            first, last = starts[numbers[0]], ends[numbers[-1]]
            inside = math.fsum(programs.exposed(number) for number in numbers) if programs.exposed else 0.0
            waiting = max(0.0, last - first - busy)
            parts.append((busy - inside, inside, first, waiting, timeline.makespan - last))
        return cls(*(math.fsum(each) / len(parts) for each in zip(*parts, strict=True)))

    def plain(self) -> dict[str, float]:
        """By name."""
        return asdict(self)

    def gains(self, other: "Account") -> dict[str, float]:
        """What this one spends less than another, by part."""
        mine, theirs = self.plain(), other.plain()
        return {name: theirs[name] - mine[name] for name in mine}
