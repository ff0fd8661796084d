"""What was tried when nano-batches were chosen for a schedule, and what each change won or lost."""

from dataclasses import dataclass

from annopipe.simulation.tables import table
from annopipe.simulation.wording import seconds_text

__all__ = ["NanoBatching", "Trial"]

_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Trial:
    """One group of changes: microbatches of a stage in one phase of its rank.

    Attributes:
        rank, stage, phase: where; the phase is the one of the actions that have no partner.
        change: "nano-batches"; "two together": two consecutive microbatches of the stage run as one combination; or
            "with a W": an F, B or I runs as one combination with the W beside it.
        microbatches: those that could be changed; of "two together" the first of each two.
        chosen: those that are.
        alone_s: how much longer the step is with all of this group's changes and no others; less than 0 is a gain. None
            where that cannot run, needs more memory than there is, or was not tried for lack of time.
        dropped_s: how much longer the step is when the chosen ones of this group are taken back; None without any, or
            where that was not tried.
        example: what changes, for one microbatch: "0F0 takes 2 ms, 0F0/2 1.5 ms".
    """

    rank: int
    stage: int
    phase: str
    change: str
    microbatches: tuple[int, ...]
    chosen: tuple[int, ...]
    alone_s: float | None
    dropped_s: float | None
    example: str


@dataclass(frozen=True, slots=True)
class NanoBatching:
    """Why a schedule has its nano-batches, or none; `str` is a table.

    Attributes:
        parts: into how many a microbatch is split.
        before_s, after_s: the simulated step without and with the changes that were chosen.
        trials: what was tried, rank by rank.
        reason: in a sentence, what was chosen, or why nothing was.
    """

    parts: int
    before_s: float
    after_s: float
    trials: tuple[Trial, ...]
    reason: str

    def __str__(self) -> str:
        if not self.trials:
            return self.reason
        rows = [("rank", "stage", "phase", "change", "chosen", "alone", "taken back", "for example")]
        for trial in self.trials:
            chosen = f"{len(trial.chosen)} of {len(trial.microbatches)}"
            place = (str(trial.rank), str(trial.stage), trial.phase)
            rows.append((*place, trial.change, chosen, _signed(trial.alone_s), _signed(trial.dropped_s), trial.example))
        return "\n".join([self.reason, *table(rows, _WIDTH, left=(2, 3, 4, 7), yielding=7)])


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"+{seconds_text(seconds)}" if seconds > 0 else seconds_text(seconds)
