"""The search beside two others: of repeating blocks on the suite, and the zero-bubble heuristic on its own problem.

annopipe bench tuning-baselines
"""

import math
from collections.abc import Sequence

import click
from tabulate import tabulate

from annopipe.tuning.tuner import DEFAULT_EFFORT, tune
from benchmarks.tuning.command import suite
from benchmarks.tuning.repeating import repeating_step
from benchmarks.tuning.zero_bubble import PROBLEMS, heuristic_step, problem

__all__ = ["command"]

_PUBLISHED = 1.49  # FlexPipe over the best automated framework (arXiv 2510.05112)
_OWN_EFFORT = 100_000

Row = tuple[str, float, float]


@click.command("tuning-baselines")
@click.option("--workload", "names", multiple=True, help="Repeatable; all of the suite by default.")
@click.option("--effort", type=click.IntRange(1), default=DEFAULT_EFFORT, show_default=True, help="Of each search.")
def command(names: Sequence[str], effort: int) -> None:
    """What is found beside a search of repeating blocks on the suite, and beside the zero-bubble authors' heuristic."""
    rows = [
        (work.name, repeating_step(work), tune(work, effort=effort, best=1)[0].timeline.makespan)
        for work in suite(names)
    ]
    _print("repeating blocks", rows)
    click.echo(f"published, measured: {_PUBLISHED} over the best automated framework\n")
    own = [problem(*each) for each in PROBLEMS]
    # One stage a rank, as there.
    found = [tune(work, effort=_OWN_EFFORT, copies=1, best=1)[0].timeline.makespan for work in own]
    _print("heuristic", [(w.name, heuristic_step(w), step) for w, step in zip(own, found, strict=True)])


def _print(baseline: str, rows: Sequence[Row]) -> None:
    table = [(name, _text(theirs), f"{ours:.5g}", _text(theirs / ours)) for name, theirs, ours in rows]
    click.echo(tabulate(table, ("workload", baseline, "ours", "ratio"), disable_numparse=True))
    ratios = [theirs / ours for _, theirs, ours in rows if theirs < math.inf]
    mean = math.exp(math.fsum(map(math.log, ratios)) / max(1, len(ratios)))
    click.echo(f"simulated; geometric mean {mean:.3f}, least {min(ratios, default=math.nan):.3f}")


def _text(value: float) -> str:
    return f"{value:.5g}" if value < math.inf else "none"
