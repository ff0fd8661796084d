"""One rank of the MoE job: ``python -m benchmarks.moe.worker CASE_JSON`` under the job's launcher.

Rank 0 prints progress as lines that start with "progress:"; what it finds as lines of JSON that start with "part:",
as soon as it has found it; and at the end the rest, on a line that starts with "result:".

    {"predicted": [...]}                                 for each variant, when all are prepared
    {"variant": 3, "exposed_seconds": 0.5, "peak_bytes": 4096}    after each step that warms up
    {"variant": 3, "seconds": 1.25}                      after each step that counts
"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from annopipe.errors import AnnopipeError
from annopipe.processors import processors
from benchmarks.alternation import alternated, raise_priority
from benchmarks.launch import end_rank
from benchmarks.moe.case import MoeCase
from benchmarks.moe.gradients import Fingerprints, differing, fingerprints, gathered
from benchmarks.moe.groups import Groups, start_groups
from benchmarks.moe.nano import Moments, phase_rows
from benchmarks.moe.observing import Watched, combined, start_watching
from benchmarks.moe.preparing import Prepared, Preparer, undisturbed
from benchmarks.moe.timelines import predicted_row
from benchmarks.moe.variant import Variant
from benchmarks.progress import tell, tell_part, tell_result

__all__ = ["main", "measure_case"]

_All = dict[Variant, Prepared]


def main() -> None:
    """Measure the case that the command line gives."""
    try:
        _run(MoeCase.from_json(sys.argv[1]))
    except AnnopipeError as error:  # the parent shows the message, not where it was raised
        sys.exit(f"{type(error).__name__}: {error}")


def _run(case: MoeCase) -> None:
    torch.set_num_threads(1)
    raise_priority(20)
    groups = start_groups(case)
    tell_result(json.dumps(measure_case(case, groups)))
    dist.barrier()
    end_rank()


def measure_case(case: MoeCase, groups: Groups) -> dict[str, Any]:
    """Prepare and run all variants; tells the parts, and returns what is known at the end."""
    preparer = Preparer(case, groups)
    ready = {variant: preparer.prepared(variant) for variant in case.variants}
    paces = preparer.setting(1.0).paces
    tell_part(
        json.dumps(
            {
                "cores": processors(),
                "transfer_s": paces.transfer_s,
                "transfer_latency_s": paces.latency_s,
                "transfer_issue_s": paces.issue_s,
                "stretch_s": paces.stretch_s,
                "hand_over_s": preparer.handed_s,
                "sum_s": preparer.summed_s,
                "predicted": [_predicted(one, preparer.summed_s) for one in ready.values()],
            }
        )
    )
    moments: dict[Variant, Moments] = {variant: [] for variant in ready}
    start_watching()
    with undisturbed(case):
        wrong = _alternated(ready, case, groups, moments)
    return {"gradients_differ": wrong, "nano_batches": [*_phases(ready, moments, case)]}


def _predicted(one: Prepared, summed_s: float) -> dict[str, Any]:
    """Of a variant; rank 0 is the one that knows, and that tells."""
    return {} if one.timeline is None else predicted_row(one.timeline, summed_s)


def _phases(ready: _All, moments: dict[Variant, Moments], case: MoeCase) -> list[dict[str, Any]]:
    """Of every variant with nano-batches beside the same without them; all ranks ask."""
    found = []
    for variant, one in ready.items():
        whole = variant.without(nano_batches=1)
        if variant.nano_batches == 1 or whole not in ready:
            continue
        both = {"before": whole, "after": variant}
        timelines = {when: timeline for when, own in both.items() if (timeline := ready[own].timeline) is not None}
        found.append(
            {
                "variant": variant.plain(),
                "reason": one.reason,
                "least_exposed_s": one.least_exposed_s,
                "phases": phase_rows(timelines, {when: moments[own] for when, own in both.items()}, case),
            }
        )
    return found


def _alternated(ready: _All, case: MoeCase, groups: Groups, moments: dict[Variant, Moments]) -> dict[str, list[str]]:
    """Run every step in every round, and tell its seconds; returns gradients that are not the first step's, by step.

    Steps with a skew have gradients of their own. Notes when the phases of steps with a clock ended. The steps that
    warm up are the ones that are watched: watching takes time.
    """
    first: dict[float, Fingerprints] = {}
    wrong: dict[str, list[str]] = {}
    places = {variant: place for place, variant in enumerate(ready)}
    watched = {variant: Watched(one.step.run) for variant, one in ready.items()}
    for number, variant, taken in alternated(watched, case.rounds):
        tell(f"{f'round {number + 1} of {case.rounds}' if number >= 0 else 'warm-up'}: {variant}")
        step = ready[variant].step
        found = gathered(fingerprints(step.modules, groups.place))
        if different := differing(first.setdefault(variant.skew, found), found):
            wrong[str(variant)] = different
        if number < 0:
            tell_part(json.dumps({"variant": places[variant], **combined(watched[variant].seen, case)}))
            continue
        tell_part(json.dumps({"variant": places[variant], "seconds": taken.clock_s}))
        if (clock := step.clock) is not None:
            moments[variant].append((clock.warmed_up_s, clock.not_steady_s, taken.clock_s))
    return wrong


if __name__ == "__main__":
    main()
