"""Why a rank of a generated schedule does what it does at a step."""

from dataclasses import dataclass

from annopipe.errors import ScheduleError
from annopipe.scheduling.generation.phased import phased_rank
from annopipe.scheduling.generation.spec_fields import SpecFields
from annopipe.simulation.ranks.timeline import ScheduleTimeline

__all__ = ["Decision", "ReadyAction", "explain_phases", "missing_step", "waiting"]


@dataclass(frozen=True, order=True)
class ReadyAction:
    """An action that could have run; candidates sort as they would be taken.

    Attributes:
        urgency: the position of its kind in the priority, 0 is the most urgent; kinds in a strict order come first.
        turn: its position in the rank's order of this kind, 0 is the first.
        action: its text.
        refused: why it could not be taken; "" when it could.
    """

    urgency: int
    turn: int
    action: str
    refused: str = ""


@dataclass(frozen=True)
class Decision:
    """What a rank took at a step, and from what.

    Attributes:
        rank, step: where.
        time: when, in the units of the costs; None for phases, which know no time.
        chosen: the text of the action.
        why: one sentence.
        candidates: what was ready, in the order in which it would be taken.
        idle: how long the rank did nothing before, when the order is simulated at the specification's costs.
        waited_for: the input that came last, and where it was made; "" when the rank was not idle.
    """

    rank: int
    step: int
    time: float | None
    chosen: str
    why: str
    candidates: tuple[ReadyAction, ...] = ()
    idle: float = 0.0
    waited_for: str = ""

    def __str__(self) -> str:
        """The decision as lines of text."""
        when = "" if self.time is None else f", time {self.time:g}"
        lines = [f"rank {self.rank}, step {self.step}{when}: {self.chosen}", self.why]
        if self.waited_for:
            lines.append(f"before, the rank was idle for {self.idle:g}: it waited for {self.waited_for}")
        width = max((len(candidate.action) for candidate in self.candidates), default=0)
        for candidate in self.candidates:
            state = candidate.refused or "ready"
            lines.append(
                f"  {candidate.action:<{width}}  urgency {candidate.urgency}  turn {candidate.turn:>3}  {state}"
            )
        return "\n".join(lines)


def waiting(timeline: ScheduleTimeline, rank: int, step: int) -> tuple[float, str]:
    """How long a rank was idle before a step, and for which input it waited; (0.0, "") when it was not."""
    own, programs = timeline.computations[rank], timeline.programs
    free = timeline.ends[own[step - 1]] if step else 0.0
    idle = timeline.starts[own[step]] - free
    if idle <= 0.0:
        return 0.0, ""
    latest = max(programs.inputs(own[step]), key=lambda number: timeline.ends[number])
    if programs.link[latest] < 0:
        return idle, programs.label(latest).text
    sender, _ = programs.links[programs.link[latest]]
    made = programs.label(programs.first[latest]).text
    on_its_way = timeline.ends[latest] - timeline.ends[programs.first[latest]]
    sent = f", whose message took {on_its_way:g}" if on_its_way > 0.0 else ""
    return idle, f"{made} of rank {sender}{sent}"


def explain_phases(spec: SpecFields, rank: int, step: int) -> Decision:
    """Why a rank of a schedule that is written in phases does what it does at a step.

    Raises ScheduleError when the rank has no such step.
    """
    steps = phased_rank(spec, rank)
    if type(step) is not int or not 0 <= step < len(steps):
        raise missing_step(rank, step, len(steps))
    action, phase = steps[step]
    own = [index for index, (_, other) in enumerate(steps) if other is phase]
    place = f"step {own.index(step) + 1} of {len(own)}"
    why = f"the order is written in phases: this is {place} of the phase '{phase.text}'"
    return Decision(rank, step, None, str(action), why)


def missing_step(rank: int, step: int, steps: int) -> ScheduleError:
    """The error for a step that a rank with so many steps does not have."""
    known = f"its steps are 0 to {steps - 1}" if steps else "it does nothing"
    return ScheduleError(f"rank {rank} has no step {step!r}; {known}")
