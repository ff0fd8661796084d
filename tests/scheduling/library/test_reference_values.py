"""Makespan, window and memory of the library against values from an independent simulator and published formulas.

Unit: F = I = W = 1 on 1/p of the model. A stage of a rank with v stages takes 1/v of it.
"""

import pytest

import annopipe as ap
from annopipe.scheduling.action_costs import ActionCosts

FOUR = {"ranks": 4, "microbatches": 8}


def costs(chunks=1, **more) -> ActionCosts:
    return ap.costs.table(F=1 / chunks, I=1 / chunks, W=1 / chunks, activation=1 / chunks, **more)


def timeline(name, costs, ranks=4, microbatches=8, **options):
    schedule = ap.schedule(name, ranks=ranks, microbatches=microbatches, **options)
    schedule.check()
    schedule.lowered().check(rendezvous=True)
    return ap.simulate(schedule, costs)


@pytest.mark.parametrize(
    ("name", "options", "chunks", "makespan", "window", "peak"),
    [
        ("naive", {}, 1, 96, 96, 1),
        ("gpipe", {}, 1, 33, 33, 8),
        ("1f1b", {}, 1, 33, 33, 4),
        ("interleaved-1f1b", {"chunks": 2}, 2, 28.5, 28.5, 5.5),
        ("interleaved-1f1b", {"chunks": 4}, 4, 26.25, 26.25, 4.75),
        ("looped-bfs", {"chunks": 2}, 2, 28.5, 28.5, 8),
        ("zb-h1", {}, 1, 27, 27, 4),
        ("interleaved-zb", {"chunks": 2}, 2, 25.5, 25.5, 4),
        ("zb-h2", {}, 1, 27, 24, 7),
        ("zbv", {}, 2, 25.5, 24, 4),
        ("v-half", {}, 2, 26.5, 26.5, 3),
        ("v-min", {}, 2, 29.5, 29.5, 2),
        ("dualpipe", {}, 1, 26, 26, 5),
        ("dualpipev", {}, 2, 27, 27, 4.5),
    ],
)
def four_ranks_and_eight_microbatches_take_the_reference_time(name, options, chunks, makespan, window, peak): ...


