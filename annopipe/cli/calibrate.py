"""``annopipe calibrate``: measure this machine, and the layers of a model on it, and write what the tuner reads."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from annopipe.errors import AnnopipeError
from annopipe.simulation.files import refuse_unwritable, write_text

if TYPE_CHECKING:
    from annopipe.cli.calibrating import Options, Outcome

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  annopipe calibrate --nproc 2 --save machine.toml
  annopipe calibrate --model model.py:make --at layers.1 --at layers.2 --workload work.toml
  torchrun --nnodes 2 --nproc-per-node 8 ... -m annopipe calibrate --save cluster.toml
"""
_TIMEOUT_S = 600.0
_MICROBATCHES = 8


@click.command("calibrate", epilog=_EXAMPLES)
@click.option(
    "--nproc", type=click.IntRange(2), help="Ranks to start on this machine; one for each GPU, or 2, if left out."
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="gloo or NCCL."
)
@click.option(
    "--ranks-per-node", type=click.IntRange(1), help="Neighbouring ranks of a node; by host names if left out."
)
@click.option("--name", help="Of the hardware in the file.")
@click.option("--model", metavar="MODULE:NAME", help="Measure its layers, too: as for annopipe inspect.")
@click.option("--at", multiple=True, metavar="PATH", help="A layer begins at this module; repeatable.")
@click.option("--input", "inputs", multiple=True, metavar="SHAPE", help="Of a model that is a module, as 2,16,32.")
@click.option("--pipeline-ranks", type=click.IntRange(1), help="Of the workload; all ranks if left out.")
@click.option("--microbatches", type=click.IntRange(1), help="Of the workload.  [default: 8]")
@click.option("--workload", metavar="PATH.toml", help="Write the layers as a workload for annopipe tune.")
@click.option("--save", metavar="PATH.toml", help="Write the machine, for ap.costs.Hardware and ap.Cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was measured as JSON instead.")
def command(
    nproc: int | None, device: str, workload: str | None, save: str | None, *, as_json: bool, **options: Any
) -> None:
    """Measure devices, links, collectives and interference on real ranks (less than a minute).

    Starts ranks of its own, or, under torchrun, is one of them.
    """
    from annopipe.cli.calibrating import Options, measured

    _check(options, workload, save)
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if under_torchrun and nproc is not None:
        raise click.UsageError("--nproc starts ranks, and torchrun has started some: leave it out")
    place, count = _devices(device, nproc)
    ranks = int(os.environ["WORLD_SIZE"]) if under_torchrun else count
    if ranks < 2:
        raise AnnopipeError(
            "one rank has no links to measure: start 2 or more; what this device attains alone says "
            "ap.costs.local_hardware()"
        )
    options |= _degrees(options, ranks) if workload else {"pipeline_ranks": 0, "microbatches": 0}
    chosen = Options(device=place, **options)
    leads = not under_torchrun or os.environ["RANK"] == "0"
    for written in filter(None, (save, workload) if leads else ()):
        refuse_unwritable(written)  # before anything is measured
    if under_torchrun:
        found = measured(chosen, _tell if leads else _say_nothing)
        if not leads:
            return
    else:
        found = _started(chosen, ranks)
    click.echo(json.dumps(found.plain, indent=1) if as_json else found.text)
    for path, text in ((save, found.machine), (workload, found.workload)):
        if path:
            write_text(path, text)
            click.echo(f"wrote {path}", err=True)


def _check(options: Mapping[str, Any], workload: str | None, save: str | None) -> None:
    """Refuse options that would have no effect, or that cannot be kept to."""
    if workload and not options["model"]:
        raise click.UsageError("--workload holds the layers of a model: say which with --model")
    if workload and not options["at"]:
        raise click.UsageError(
            "--workload needs layers: say where they begin with --at, as --at layers.1 --at layers.2"
        )
    of_model, of_workload = {"at": "--at", "inputs": "--input"}, ("pipeline_ranks", "microbatches")
    for name, option in of_model.items():
        if options[name] and not options["model"]:
            raise click.UsageError(f"{option} is of a model: say which with --model")
    for name in of_workload:
        if options[name] and not workload:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is of a workload: say where to write it with --workload"
            )
    if workload and save and Path(workload).absolute() == Path(save).absolute():
        raise click.UsageError(f"--workload and --save are both {save}: give a file to each")


def _degrees(options: Mapping[str, Any], ranks: int) -> dict[str, int]:
    """Of the workload; said before anything is measured if its layers are too few."""
    wanted, layers = options["pipeline_ranks"] or ranks, len(set(options["at"])) + 1
    if layers < wanted:
        raise click.UsageError(
            f"--at makes {layers} layers, fewer than {wanted} pipeline ranks: give more of them, or --pipeline-ranks"
        )
    return {"pipeline_ranks": wanted, "microbatches": options["microbatches"] or _MICROBATCHES}


def _devices(device: str, nproc: int | None) -> tuple[str, int]:
    """Where to measure, and on how many ranks."""
    import torch

    gpus = torch.cuda.device_count()
    place = ("cuda" if gpus else "cpu") if device == "auto" else device
    if place == "cpu":
        return place, nproc or 2
    if not gpus:
        raise AnnopipeError("there is no GPU here: leave --device out, or give --device cpu")
    if nproc is not None and nproc > gpus:
        raise AnnopipeError(f"--nproc {nproc}, and there are {gpus} GPUs: NCCL wants one for each rank")
    return place, nproc or gpus


def _started(options: "Options", ranks: int) -> "Outcome":
    from annopipe.cli.calibrating import Outcome
    from benchmarks.progress import result_of_ranks

    args = [json.dumps(dataclasses.asdict(options))]
    found = result_of_ranks("annopipe.cli.calibrating", ranks, args, timeout_s=_TIMEOUT_S, progress=_tell)
    return Outcome(**json.loads(found))


def _tell(text: str) -> None:
    click.echo(f"measuring {text}", err=True)


def _say_nothing(_: str) -> None:
    pass
