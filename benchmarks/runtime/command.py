"""What a pipeline's runtime costs per action, without computation: ours beside torch.distributed.pipelining's.

annopipe bench runtime
annopipe bench runtime --ranks 1 --parameters 2 --parameters 1000
annopipe bench runtime --ranks 2 --microbatches 32 --json
"""

import json
from importlib.metadata import version
from typing import Any

import click
from tabulate import tabulate

from annopipe.errors import AnnopipeError
from benchmarks.eager_names import runs_over_gloo
from benchmarks.launch import LaunchError, run_ranks

__all__ = ["command"]

_WORKER = "benchmarks.runtime.worker"
_NAMES = ("interleaved-1f1b", "zbv", "dualpipev")
_HEADERS = (
    "ranks",
    "schedule",
    "parameters",
    "actions",
    "annopipe",
    "spread",
    "upstream",
    "spread",
    "ratio",
    "processor",
    "upstream",
)
_TIMEOUT_S = 300.0


@click.command("runtime")
@click.option("--ranks", multiple=True, type=click.IntRange(1), default=(1, 2), show_default=True, help="Repeatable.")
@click.option("--schedule", "names", multiple=True, type=click.Choice(_NAMES), help="Repeatable; all by default.")
@click.option(
    "--parameters",
    multiple=True,
    type=click.IntRange(2),
    default=(2,),
    show_default=True,
    help="Of each stage, even; repeatable.",
)
@click.option("--microbatches", type=click.IntRange(1), default=16, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=25, show_default=True, help="Repetitions, in alternation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    ranks: tuple[int, ...],
    names: tuple[str, ...],
    parameters: tuple[int, ...],
    microbatches: int,
    rounds: int,
    *,
    as_json: bool,
) -> None:
    """Time the runtime per action: tiny tensors over gloo, annopipe beside torch.distributed.pipelining."""
    if unable := [name for name in names or _NAMES if not all(runs_over_gloo(name, count) for count in ranks)]:
        raise AnnopipeError(
            f"PyTorch {version('torch')} sends from a rank to itself in {', '.join(unable)}, which gloo cannot do: "
            "there is nothing to compare with; take another release of PyTorch"
        )
    settings = {"schedules": names or _NAMES, "parameters": parameters, "microbatches": microbatches, "rounds": rounds}
    rows = [{"ranks": count, **row} for count in ranks for row in _rows(count, settings)]
    if as_json:
        click.echo(json.dumps({"microbatches": microbatches, "rounds": rounds, "rows": rows}, indent=1))
        return
    click.echo(f"{microbatches} microbatches; us per compute action, median of {rounds}, of the slowest rank, measured")
    table = [_cells(row) for row in rows]
    click.echo(tabulate(table, headers=_HEADERS, disable_numparse=True, colalign=("right",)))


def _rows(ranks: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    output = run_ranks(_WORKER, ranks, args=[json.dumps(settings)], timeout_s=_TIMEOUT_S)[0]
    results = [line.removeprefix("result:") for line in output.splitlines() if line.startswith("result:")]
    if not results:
        raise LaunchError(f"{_WORKER}: rank 0 ended without a result")
    found: list[dict[str, Any]] = json.loads(results[0])
    return found


def _cells(row: dict[str, Any]) -> list[str]:
    ours, theirs = row["annopipe"], row["upstream"]
    return [
        str(row["ranks"]),
        row["schedule"],
        str(row["parameters"]),
        str(row["actions"]),
        *_times(ours),
        *_times(theirs),
        f"{ours['median_s'] / theirs['median_s']:.2f}",
        f"{ours['processor_s'] * 1e6:.0f}",
        f"{theirs['processor_s'] * 1e6:.0f}",
    ]


def _times(found: dict[str, float]) -> tuple[str, str]:
    median, fastest, slowest = (found[key] * 1e6 for key in ("median_s", "fastest_s", "slowest_s"))
    return f"{median:.0f}", f"{fastest:.0f}-{slowest:.0f}"


if __name__ == "__main__":
    command()
