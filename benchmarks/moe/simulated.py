"""Rows of configurations that cannot run here: layers of a real model, priced for a cluster, under each schedule."""

import dataclasses
from collections.abc import Callable
from typing import Any

from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.nano_batching.choosing import with_nano_batches
from annopipe.tuning.baseline import named_trial
from annopipe.tuning.bounds import lower_bound
from annopipe.tuning.finishing import step_time
from annopipe.tuning.trial import Trial
from annopipe.tuning.workload import Workload
from benchmarks.moe.config import Config
from benchmarks.moe.results import Rows
from benchmarks.moe.timelines import predicted_row
from benchmarks.moe.variant import SEQUENTIAL, Variant
from benchmarks.signals import held_back

__all__ = ["check", "in_sequence", "simulate"]

_ROOMY = 1e12  # bytes: schedules are compared by time; their peaks are in the rows
_NANO_EFFORT = 300_000


def check(config: Config) -> None:
    """Refuse a model that has no such name, and degrees that it cannot have, before anything is priced."""
    size, copies = config.model.get("microbatch_size", 1), config.ep * config.dp
    model = Workload.from_model(config.model["name"], batch=config.microbatches * size * copies)
    model.degrees(config.cluster_of(), ranks=config.pp, data=copies, expert=config.ep, microbatch_size=size)


def simulate(config: Config, rows: Rows, progress: Callable[[str], None]) -> None:
    """Fill in what is predicted of every row, group by group of those that are priced alike."""
    machine = config.cluster_of()
    why = f"not measured: it takes {config.ranks} devices like {machine.hardware.name}"
    for compiled, skew in dict.fromkeys((variant.compiled, variant.skew) for variant in rows):
        own = {key: row for key, row in rows.items() if (key.compiled, key.skew) == (compiled, skew)}
        progress(f"pricing layers{', fused' if compiled else ''}{f', skew {skew:g}' if skew != 1.0 else ''}")
        with held_back():  # layers are traced
            work = _workload(config, fused=compiled, skew=skew)
        trials: dict[str, Trial] = {}
        for variant, row in own.items():
            progress(str(variant))
            if variant.schedule not in trials:
                trials[variant.schedule] = _trial(work, variant.schedule, config)
            found = _predicted(work, trials[variant.schedule], variant)
            row["timeline"] = found.pop("timeline")
            row["predicted"], row["why_missing"] = found, why


def in_sequence(costs: ActionCosts) -> ActionCosts:
    """The same costs where combined graphs run in program order: one lane after the other, so that nothing is hidden.

    >>> import annopipe as ap
    >>> overlapped = ap.costs.table(F=2.0, B=4.0, FB=5.0, exposed={"F": 0.5, "FB": 0.0})
    >>> in_sequence(overlapped).duration(ap.Action.parse("(0F1;1B0)OVERLAP_F_B"))
    6.0
    """
    exposed = {name: value for name, value in costs.exposed.items() if name != "FB"}
    return dataclasses.replace(costs, FB=None, overlap=None, exposed=exposed)


def _workload(config: Config, *, fused: bool, skew: float) -> Workload:
    size = config.model.get("microbatch_size", 1)
    copies = config.ep * config.dp
    return Workload.from_model(
        config.model["name"],
        config.cluster_of(),
        batch=config.microbatches * size * copies,
        sequence=config.model.get("sequence", 4096),
        ranks=config.pp,
        data=copies,
        expert=config.ep,
        microbatch_size=size,
        memory=_ROOMY,
        recompute=None,
        options={"fused": fused, "skew": skew},
    )


def _trial(work: Workload, schedule: str, config: Config) -> Trial:
    """The best even split of the layers for a schedule."""
    trial = named_trial(work, schedule)
    if trial is None:
        raise config.error(f"{schedule}: {len(work.layers)} layers are too few for its stages on {config.pp} ranks")
    return trial


def _predicted(work: Workload, trial: Trial, variant: Variant) -> dict[str, Any]:
    schedule, _ = trial.simulated(work)
    costs = trial.costs(work)
    if variant.policy in (None, SEQUENTIAL):
        costs = in_sequence(costs)
    if variant.nano_batches > 1:
        schedule = with_nano_batches(schedule, costs, variant.nano_batches, effort=_NANO_EFFORT)
    timeline = schedule.simulated(costs)
    step = step_time(work, trial.layout, timeline)
    bound = lower_bound(work, copies=trial.layout.placement.copies)
    return predicted_row(timeline, step - timeline.makespan, bound)
