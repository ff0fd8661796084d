"""What ``annopipe tune`` prints: the candidates, the layers of the best one's stages, and where the time went."""

import sys
import textwrap
from collections.abc import Sequence

from annopipe.cli.schedule.options import width_of_terminal
from annopipe.simulation.tables import table
from annopipe.simulation.wording import amount_text, seconds_text
from annopipe.tuning.candidate import Candidate

__all__ = ["heading", "lines"]

_PARTS = {
    "computing": "computing",
    "exposed": "communication inside actions, exposed",
    "filling": "before the first action",
    "waiting": "between actions (messages, too)",
    "draining": "after the last action",
}
_ROUNDING = 1e-9  # of a step: less than that is what is left of differences of floats


def lines(shown: Sequence[Candidate], library: Candidate | None) -> list[str]:
    """The whole report; ``shown`` is best first."""
    width, best = width_of_terminal(), shown[0]
    by_degrees = best.degrees is not None
    rows: list[Sequence[str]] = [("degrees", "step", "of the bound", "bubble", "peak memory", "stages", "schedule")]
    for candidate in shown:
        timeline, peak = candidate.timeline, amount_text(candidate.timeline.peak_memory)
        rows.append(
            (
                str(candidate.degrees),
                _time(candidate, candidate.step, 5),
                f"{candidate.gap:.3f}",
                f"{timeline.bubble:.1%}",
                f"{peak}B" if by_degrees else peak,
                str(candidate.trial.layout.placement.stages),
                f"{candidate.name}{' (library)' if candidate.trial.rules.library else ''}",
            )
        )
    if not by_degrees:
        rows = [row[1:] for row in rows]
    # The names come last and whole, however long they are: they differ at both ends.
    columns = len(rows[0])
    units = "simulated" if by_degrees else "simulated; times and memory in the units of the file"
    found = [f"{heading(best)}, bound {_time(best, best.bound, 5)} ({units})", ""]
    found += [*table(rows, sys.maxsize, left=(0, columns - 1) if by_degrees else (columns - 1,)), ""]
    found += textwrap.wrap(f"layers of the best one's stages: {_layers(best)}", width, subsequent_indent="  ")
    if library is not None and best is not library:
        found += ["", *_why(best, library, width)]
    elif best is library:
        found += ["", "the best is one of the library, with its layers evenly over the stages"]
    return found


def heading(best: Candidate) -> str:
    """What was searched for, in a few words."""
    work, degrees = best.work, f"{best.degrees}: " if best.degrees else ""
    return f"{work.name}: {degrees}{work.ranks} ranks, {work.microbatches} microbatches"


def _time(candidate: Candidate, time: float, digits: int = 4) -> str:
    """With its unit where it is known: models are priced in seconds, files may have any unit."""
    rounded = 0.0 if abs(time) < _ROUNDING * candidate.step else time
    return seconds_text(rounded) if candidate.degrees else f"{rounded:.{digits}g}"


def _layers(candidate: Candidate) -> str:
    layout = candidate.trial.layout
    texts = []
    for stage, (start, end) in enumerate(layout.bounds):
        again = layout.recomputed[stage] if layout.recomputed else 0
        held = f"{start}-{end - 1}" if end - start > 1 else f"{start}"
        texts.append(f"{held} on rank {layout.placement.rank_of[stage]}" + (f" ({again} again)" if again else ""))
    return "; ".join(texts)


def _why(best: Candidate, library: Candidate, width: int) -> list[str]:
    """Which part of the library's best step the search has made shorter."""
    theirs, ours = library.account.plain(), best.account.plain()
    parts = [(said, theirs[part], ours[part]) for part, said in _PARTS.items()]
    if best.work.has_reduce or library.work.has_reduce:
        sums = [each.step - each.timeline.makespan for each in (library, best)]
        parts.append(("sum of gradients, exposed", sums[0], sums[1]))
    rows: list[Sequence[str]] = [("mean over the ranks", library.name, "best", "saved")]
    for said, before, after in parts:
        rows.append((said, *(_time(best, time) for time in (before, after, before - after))))
    rows.append(
        ("the step", _time(best, library.step, 5), _time(best, best.step, 5), f"{library.step / best.step:.3f}x")
    )
    return table(rows, width, left=(0,), yielding=0)
