"""``annopipe bench kernels``: our kernels, compiled for GPUs that are not here, or timed on the one that is."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from annopipe.simulation.files import refuse_unwritable, write_text

__all__ = ["command"]


@click.command("kernels")
@click.option(
    "--offline", is_flag=True, help="compile, and print what each form takes of a multiprocessor; needs no GPU"
)
@click.option("--quick", is_flag=True, help="offline: a few typical forms instead of all, which take minutes")
@click.option("--target", type=click.Choice(["90", "100"]), multiple=True, help="offline: only this compute capability")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="where to time  [default: cuda]")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="write the numbers as JSON, too")
def command(offline: bool, quick: bool, target: tuple[str, ...], device: str | None, path: Path | None) -> None:
    """Time our kernels beside PyTorch's operations, or compile them for GPUs that are not here."""
    if not offline and (quick or target):
        raise click.UsageError(
            f"{'--quick' if quick else '--target'} says what --offline compiles: give both, or neither"
        )
    if offline and device is not None:
        raise click.UsageError("--device says where to time, and --offline times nothing: leave out one of them")
    if path is not None:
        refuse_unwritable(path)
    found = _compiled(quick, target) if offline else _timed(device or "cuda")
    if path is not None:
        write_text(path, json.dumps(found, indent=1) + "\n")


def _compiled(quick: bool, target: tuple[str, ...]) -> list[dict[str, object]]:
    from benchmarks.kernels import offline
    from benchmarks.kernels.variants import TARGETS

    found = list(offline.report(map(int, target) if target else TARGETS, quick=quick))
    click.echo(offline.table(found))
    spilled = sum(one.spilled_bytes > 0 for one in found)
    click.echo(f"\n{len(found)} forms, {spilled} with spilled registers")
    return [asdict(one) for one in found]


def _timed(device: str) -> list[dict[str, object]]:
    import torch

    from benchmarks.kernels.measuring import LARGE, SMALL, measure
    from benchmarks.kernels.showing import table

    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError(
            "no GPU here (torch.cuda.is_available()): --offline compiles without one, --device cpu tests the command"
        )
    rows = measure(SMALL if device == "cpu" else LARGE, torch.bfloat16, torch.device(device))
    click.echo(table(rows))
    return [asdict(row) for row in rows]
