"""Compiled graphs beside eager ones, and what running a graph costs besides its computation.

annopipe bench compile
annopipe bench compile --size tiny --rounds 5
annopipe bench compile --json
"""

import json
import tempfile
from typing import Any

import click
from tabulate import tabulate

from benchmarks.launch import LaunchError, run_ranks

__all__ = ["command"]

_WORKER = "benchmarks.compiling.worker"
SIZES = ("tiny", "medium")
_TIMEOUT_S = 3600.0
_GRAPHS = ("model", "graph", "nodes", "eager ms", "compiled ms", "ratio", "spread", "error", "stretches", "distinct")
_COMPILATION = ("model", "distinct", "cold s", "from cache s")


@click.command("compile")
@click.option("--size", "sizes", multiple=True, type=click.Choice(SIZES), help="Repeatable; all by default.")
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True, help="Repetitions, in alternation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(sizes: tuple[str, ...], rounds: int, *, as_json: bool) -> None:
    """Time compiled graphs of a mixture of experts beside eager ones, and the runner itself."""
    with tempfile.TemporaryDirectory(prefix="annopipe-compile-") as folder:
        settings = {"sizes": sizes or SIZES, "rounds": 0}
        cold = _run(settings, folder)
        found = _run({**settings, "rounds": rounds}, folder)
    for row, before in zip(found["compilation"], cold["compilation"], strict=True):
        row["cold_s"] = before["seconds"]
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"one rank, one thread; processor time, median of {rounds} in alternation, measured")
    click.echo(tabulate([_graph_cells(row) for row in found["graphs"]], headers=_GRAPHS, disable_numparse=True))
    click.echo("\ncompilation, measured by the clock: a first process, and a second one that finds its results on disk")
    cells = [(r["size"], r["distinct"], f"{r['cold_s']:.1f}", f"{r['seconds']:.1f}") for r in found["compilation"]]
    click.echo(tabulate(cells, headers=_COMPILATION, disable_numparse=True))
    click.echo("\nthe runner, without computation, in us of processor time, measured")
    click.echo(tabulate([(what, f"{us:.2f}") for what, us in found["runner"].items()], headers=("what", "us")))


def _run(settings: dict[str, Any], folder: str) -> dict[str, Any]:
    environment = {"TORCHINDUCTOR_CACHE_DIR": folder}
    output = run_ranks(_WORKER, 1, args=[json.dumps(settings)], env=environment, timeout_s=_TIMEOUT_S)[0]
    results = [line.removeprefix("result:") for line in output.splitlines() if line.startswith("result:")]
    if not results:
        raise LaunchError(f"{_WORKER}: it ended without a result")
    found: dict[str, Any] = json.loads(results[0])
    return found


def _graph_cells(row: dict[str, Any]) -> list[str]:
    ratios = row["ratios"]
    return [
        row["size"],
        row["graph"],
        str(row["nodes"]),
        f"{row['eager_s'] * 1e3:.2f}",
        f"{row['compiled_s'] * 1e3:.2f}",
        f"{row['compiled_s'] / row['eager_s']:.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        f"{row['error']:.0e}",
        str(row["stretches"]),
        str(row["distinct"]),
    ]


if __name__ == "__main__":
    command()
