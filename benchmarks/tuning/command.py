"""What `annopipe tune` finds on the suite, beside the best of the library and the bound.

annopipe bench tuning
annopipe bench tuning --workload gpt5b-vocab-256k --effort 5000000
"""

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from tabulate import tabulate

from annopipe.tuning.tuner import DEFAULT_EFFORT, tune
from annopipe.tuning.workload import Workload

__all__ = ["SUITE", "Row", "command", "measure", "suite"]

SUITE = Path(__file__).with_name("workloads.toml")
_BETTER = 1.05


def suite(names: Sequence[str], path: Path = SUITE) -> list[Workload]:
    """The workloads of those names; all of them where there are none.

    Raises click.UsageError for a name that is not there.

    >>> [work.name for work in suite(["odd-counts"])]
    ['odd-counts']
    """
    works = Workload.all_from_toml(path)
    known = [work.name for work in works]
    if missing := [name for name in names if name not in known]:
        raise click.UsageError(f"the suite has no workload {missing[0]!r}, only {', '.join(known)}")
    return [work for work in works if not names or work.name in names]


@dataclass(frozen=True)
class Row:
    """One workload: times in the unit of the workload, `seconds` those that the search took.

    Attributes:
        ratio: the library's step over ours.
        gap: our step over the bound.
    """

    workload: str
    library: str
    library_step: float
    found: str
    found_step: float
    bound: float
    ratio: float
    gap: float
    seconds: float


def measure(works: Iterable[Workload], *, seed: int, effort: int, copies: int) -> list[Row]:
    """Search for each workload."""
    rows = []
    for work in works:
        started = time.perf_counter()
        found = tune(work, seed=seed, effort=effort, copies=copies)
        seconds = time.perf_counter() - started
        library = next((candidate for candidate in found if candidate.trial.rules.library), None)
        if library is None:
            raise click.ClickException(f"{work.name}: no library schedule keeps to its memory, to compare with")
        steps = library.step, found[0].step
        ratio = steps[0] / steps[1]
        rows.append(
            Row(
                work.name,
                library.name,
                steps[0],
                found[0].name,
                steps[1],
                found[0].bound,
                ratio,
                found[0].gap,
                seconds,
            )
        )
        click.echo(f"{work.name}: {ratio:.3f}x the library's best, {found[0].gap:.3f} of the bound", err=True)
    return rows


@click.command("tuning")
@click.option("--workload", "names", multiple=True, help="Repeatable; all of the suite by default.")
@click.option("--file", "path", type=click.Path(exists=True, path_type=Path), default=SUITE, help="Another suite.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--effort", type=click.IntRange(1), default=DEFAULT_EFFORT, show_default=True, help="Of each search.")
@click.option("--copies", type=click.IntRange(1, 2), default=2, show_default=True, help="Of the model, at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(names: Sequence[str], path: Path, *, seed: int, effort: int, copies: int, as_json: bool) -> None:
    """Search for the schedules of the suite: simulated steps beside the library's best with even stages."""
    rows = measure(suite(names, path), seed=seed, effort=effort, copies=copies)
    if as_json:
        click.echo(json.dumps({"seed": seed, "effort": effort, "rows": [asdict(row) for row in rows]}, indent=1))
        return
    table = [
        (
            r.workload,
            r.library,
            f"{r.library_step:.5g}",
            f"{r.found_step:.5g}",
            f"{r.ratio:.3f}",
            f"{r.gap:.3f}",
            f"{r.seconds:.0f}",
        )
        for r in rows
    ]
    heads = ("workload", "best of the library", "its step", "ours", "ratio", "of the bound", "seconds")
    click.echo(tabulate(table, heads, disable_numparse=True))
    better = sum(row.ratio >= _BETTER for row in rows)
    mean = math.exp(math.fsum(math.log(row.ratio) for row in rows) / len(rows))
    click.echo(f"\nsimulated; better by 5% or more on {better} of {len(rows)}, geometric mean of the ratios {mean:.3f}")
