"""``ap.with_nano_batches``: the same schedule with nano-batches where they make the step shorter."""

from collections.abc import Collection, Sequence

from annopipe.errors import CostError, GraphError, ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import Action, overlap
from annopipe.scheduling.lanes import with_parts
from annopipe.scheduling.nano_batching.candidates import (
    CHANGES,
    NANO_BATCHES,
    TOGETHER,
    WITH_WEIGHT,
    Group,
    Pair,
    groups,
)
from annopipe.scheduling.nano_batching.evaluation import Choice, Evaluator, Score
from annopipe.scheduling.nano_batching.record import NanoBatching, Trial
from annopipe.scheduling.nano_batching.search import Search
from annopipe.scheduling.schedule_class import Schedule
from annopipe.simulation.ranks.phases import PHASES
from annopipe.simulation.wording import seconds_text

__all__ = ["with_nano_batches"]


def with_nano_batches(
    schedule: Schedule,
    costs: ActionCosts,
    parts: int = 2,
    *,
    memory: float | None = None,
    stages: Collection[int] | None = None,
    effort: int = 2_000_000,
) -> Schedule:
    """Let forwards and backwards that have no partner run as nano-batches, where that makes the simulated step shorter.

    In its warm-up and cool-down a rank has only forwards, or only backwards, and nothing hides their communication.
    Here a microbatch of a stage may run as `parts` lanes, in all of its actions (where it has a partner, the pair has a
    lane more), or two consecutive microbatches of a stage may run together. Such changes are tried by rank, stage and
    phase, then one by one, and kept while the simulated step gets shorter, or hides more at the same length. A schedule
    that no change makes shorter is returned as it is.

    Args:
        schedule: any, without messages; what it has of nano-batches stays.
        costs: how long actions take, in lanes too: `lanes=` of ``ap.costs.table``, or ``ap.costs.actions`` of graphs,
            which plans some dozens of different lanes for it, each as long as ``ap.overlap`` takes.
        parts: into how many a microbatch is split.
        memory: how much of activations a rank may keep, as in `Schedule.check`.
        stages: those that may change; None is all. Leave out stages whose microbatches cannot be split.
        effort: how many actions are simulated for it, about; the default takes a few seconds.

    Returns:
        The schedule; its `nano_batching` says what was tried, and what each change won or lost.

    Raises:
        ScheduleError: the schedule cannot be run, has messages, or keeps more than `memory` as it is.
        CostError: the costs are of other stages.

    >>> import annopipe as ap
    >>> costs = ap.costs.table(exposed={"F": 0.5}, lanes={"F/2": 0.75})
    >>> chosen = ap.with_nano_batches(ap.schedule("gpipe", ranks=2, microbatches=1), costs)
    >>> chosen.ranks[1][0].nano_batches, ap.simulate(chosen, costs).makespan
    (2, 5.5)
    """
    _check(schedule, costs, parts, stages)
    schedule.check(memory=memory, costs=costs)
    evaluator = Evaluator(schedule.programs, costs, schedule.operations, parts, memory)
    candidates = groups(evaluator.ranks, PHASES, stages)
    plain = evaluator.score(frozenset())
    if plain is None:
        raise ScheduleError("the schedule is right and cannot be simulated; this is a mistake in annopipe")
    search = Search(evaluator, candidates, plain, effort)
    choice = search.best if search.pays else frozenset()
    trials = tuple(
        _trial(group, search, choice, _example(group, costs, parts), alone)
        for group, alone in zip(candidates, search.alone, strict=True)
    )
    after = search.score.makespan if search.pays else plain.makespan
    record = NanoBatching(
        parts, plain.makespan, after, trials, _reason(choice, trials, plain.makespan, after, parts, costs)
    )
    if not choice:
        return Schedule(schedule.programs, schedule.name, schedule.operations, record)
    name = f"{schedule.name} with nano-batches".strip()
    return Schedule(evaluator.programs(choice), name, schedule.operations, record)


def _check(schedule: Schedule, costs: ActionCosts, parts: int, stages: Collection[int] | None) -> None:
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"schedule is {schedule!r}; make one with annopipe.schedule")
    if not isinstance(costs, ActionCosts):
        raise CostError(f"costs is {costs!r}; make them with annopipe.costs.table or annopipe.costs.actions")
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 2:
        raise ScheduleError(f"parts={parts!r}: give into how many nano-batches a microbatch is split, 2 or more")
    if not isinstance(stages, Collection | None):
        raise ScheduleError(f"stages={stages!r}: give the stages that may change, such as [{stages!r}]")
    unknown = sorted(set(stages or ()) - set(range(schedule.placement.stages)), key=str)
    if unknown:
        raise ScheduleError(f"stages names {unknown[0]!r}: there are stages 0 to {schedule.placement.stages - 1}")
    numbering = schedule.programs.numbering
    messages = range(numbering.first("SEND_F"), numbering.base)
    if any(number in messages for program in schedule.programs.ranks for number in program):
        raise ScheduleError("the schedule has messages: choose nano-batches first, and lower the result")


def _trial(group: Group, search: Search, choice: Choice, example: str, alone: Score | None) -> Trial:
    chosen = [unit for unit in group.units if unit in choice]
    without = search.of_choice(choice.difference(chosen)) if chosen else None
    return Trial(
        group.rank,
        group.stage,
        group.phase,
        group.change,
        tuple(map(_microbatch, group.units)),
        tuple(map(_microbatch, chosen)),
        None if alone is None else search.difference(alone, search.plain),
        None if without is None else search.difference(without, search.score),
        example,
    )


def _microbatch(unit: Pair | tuple[int, int]) -> int:
    return unit.microbatch if isinstance(unit, Pair) else unit[1]


def _example(group: Group, costs: ActionCosts, parts: int) -> str:
    """What one change does: times, and exposed communication where there is some."""
    if group.change == NANO_BATCHES:
        lanes = with_parts(group.example[0], parts)
        return f"{group.example[0]} takes {_times(group.example, costs)}, {lanes} {_times([lanes], costs)}"
    one, other = group.example
    return f"{one} and {other} take {_times(group.example, costs)}, together {_times([overlap(one, other)], costs)}"


def _times(actions: Sequence[Action], costs: ActionCosts) -> str:
    try:
        exposed, seconds = sum(map(costs.exposed_of, actions)), sum(map(costs.duration, actions))
    except GraphError as error:
        return f"cannot run ({error})"
    return f"{seconds_text(seconds)} ({seconds_text(exposed)} exposed)" if exposed else seconds_text(seconds)


def _reason(
    choice: Choice, trials: Sequence[Trial], before: float, after: float, parts: int, costs: ActionCosts
) -> str:
    if not trials:
        return "left alone: there is no forward or backward without a partner that could change"
    step = seconds_text(before)
    if choice:
        counts = {change: sum(len(t.chosen) for t in trials if t.change == change) for change in CHANGES}
        words = {
            NANO_BATCHES: f"{counts[NANO_BATCHES]} microbatches of a stage run as {parts} nano-batches",
            TOGETHER: f"{counts[TOGETHER]} times two run together",
            WITH_WEIGHT: f"{counts[WITH_WEIGHT]} run with a W",
        }
        said = ", ".join(words[change] for change in CHANGES if counts[change])
        return f"{said}: the step takes {seconds_text(after)} instead of {step} ({after / before - 1:+.1%})"
    tried = [trial for trial in trials if trial.alone_s is not None]
    if not tried:
        return f"left alone: nothing that was tried can run; the step takes {step}"
    best = min(tried, key=lambda trial: trial.alone_s or 0.0)
    longer = f"{seconds_text(best.alone_s)} longer" if best.alone_s else "no shorter"
    told = costs.lanes or costs.overlap
    hint = "" if told else "; the costs do not say what lanes take: give lanes=, or costs of graphs (ap.costs.actions)"
    return (
        f"left alone: nothing that was tried makes the step shorter than {step}; the best of one group, "
        f"{best.change} of stage {best.stage} in the {best.phase} of rank {best.rank}, makes it {longer}: "
        f"{best.example}{hint}"
    )
