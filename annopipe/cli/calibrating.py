"""What ``annopipe calibrate`` does on every rank: measure the machine, and the layers of a model, and say it as text.

``python -m annopipe.cli.calibrating OPTIONS_JSON`` is one rank that the command has started (benchmarks/progress.py).
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from annopipe.errors import AnnopipeError

if TYPE_CHECKING:
    from torch import nn

    from annopipe.costs import Calibration, LayerTimes

    Model = tuple[list[nn.Module], tuple[Any, ...], dict[str, Any]]  # layers, and what the first is called with

__all__ = ["Options", "Outcome", "measured"]


@dataclasses.dataclass(frozen=True)
class Options:
    """What to measure.

    model, at, inputs: the model, the modules before which it is cut into layers, and example inputs; "" for no model.
    pipeline_ranks, microbatches: of the workload that its layers make; 0 where none is wanted.
    """

    device: str = "cpu"
    ranks_per_node: int | None = None
    name: str | None = None
    model: str = ""
    at: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    pipeline_ranks: int = 0
    microbatches: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was found: for people, for files, and everything as plain data. workload: "" where none is wanted."""

    text: str
    machine: str
    workload: str
    plain: dict[str, Any]


def measured(options: Options, report: Callable[[str], None]) -> Outcome:
    """Join the other ranks, measure, and leave; the same on all ranks."""
    import torch
    import torch.distributed as dist

    import annopipe as ap

    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    dist.barrier()  # who fails below must not be taken for a peer that was never there
    try:
        # First: what is wrong with a model is said before anything is measured. Its layers may use the group.
        model = _model(options) if options.model else None
        found = ap.costs.calibrate(
            device=options.device, ranks_per_node=options.ranks_per_node, name=options.name, report=report
        )
        layers = _layers(model, report) if model else []
        work = _workload(options, found, layers) if options.pipeline_ranks else None
        dist.barrier()
    finally:
        dist.destroy_process_group()
    text = "\n".join([*_text(found), *(_layers_text(layers) if layers else [])])
    plain = {**found.plain(), "layers": [dataclasses.asdict(layer) for layer in layers]}
    return Outcome(text, found.to_toml(), work.to_toml() if work else "", plain)


def _model(options: Options) -> "Model":
    import annopipe as ap
    from annopipe.cli.loading import load_model

    model, args, kwargs = load_model(options.model, options.inputs)
    return ap.split(model, at=list(options.at)) if options.at else [model], args, kwargs


def _layers(model: "Model", report: Callable[[str], None]) -> "list[LayerTimes]":
    import torch.distributed as dist

    import annopipe as ap

    layers, args, kwargs = model
    return ap.costs.measure_layers(layers, *args, kwargs=kwargs, group=dist.group.WORLD, report=report)


def _workload(options: Options, found: "Calibration", layers: "list[LayerTimes]") -> Any:
    import annopipe as ap

    # Stages that are neighbours lie on different nodes, where there are several: the slower link counts.
    line = found.of("send", "between" if found.crosses_nodes else "inside").line
    handed_on = max((each.output for each in layers[:-1]), default=0)
    return ap.Workload(
        tuple(
            ap.Layer(
                F=_short(each.F),
                I=_short(each.I),
                W=_short(each.W),
                activation=each.activation,
                comm=_short(each.comm),
                parameters=each.parameters,
            )
            for each in layers
        ),
        ranks=options.pipeline_ranks,
        microbatches=options.microbatches,
        message=_short(handed_on / line.bandwidth),
        latency=_short(line.latency_s),
        name=options.model.rpartition(":")[2],
    )


def _short(seconds: float) -> float:
    """What a measurement is worth."""
    return float(f"{seconds:.4g}")


def _text(found: "Calibration") -> list[str]:
    from tabulate import tabulate

    own = found.hardware
    peaks = ", ".join(f"{dtype} {flops / 1e9:.4g}" for dtype, flops in own.peak_flops.items())
    rows = [
        (
            each.kind.replace("_", "-"),
            "inside a node" if each.where == "inside" else "between nodes",
            each.ranks if each.kind != "send" else 2,
            f"{each.line.latency_s * 1e6:.1f}",
            f"{each.line.bandwidth / 1e6:.4g}",
            f"{each.line.residual:.1%}",
            f"{each.issue_s * 1e6:.1f}" if each.issue_s else "",
            f"{found.modelled(each):.2f}",
        )
        for each in found.messages
    ]
    headers = ("message", "where", "ranks", "latency us", "MB/s", "deviation", "issue us", "hardware/measured")
    beside = found.interference
    who = f"{found.devices} ranks over {found.backend}, {own.ranks_per_node} on a node"
    memory = f"memory {own.memory_bandwidth / 1e9:.4g} GB/s, {found.memory / 2**30:.3g} GiB each"
    tiny = f"a tiny operation {own.kernel_launch_s * 1e6:.2g} us, a host read {own.host_read_s * 1e6:.2g} us"
    slowed = f"products of matrices take {beside.matmul:.0%} longer, copies of memory {beside.memory:.0%}"
    return [
        f"{who}; measured in {found.seconds:.0f} s",
        f"{own.name}: GFLOP/s {peaks}; {memory}; {tiny}",
        tabulate(rows, headers=headers, disable_numparse=True),
        f"transfers of one group that move at a time: {own.in_flight}",
        f"while messages move, {slowed}; an all-to-all beside products {beside.transfer_beside_matmul:.0%}",
        *(f"note: {note}" for note in found.notes),
    ]


def _layers_text(layers: "list[LayerTimes]") -> list[str]:
    from tabulate import tabulate

    rows = [
        (
            index,
            *(f"{seconds * 1e3:.3f}" for seconds in (each.F, each.I, each.W, each.comm)),
            *(f"{size / 2**20:.3f}" for size in (each.activation, each.parameters, each.output)),
        )
        for index, each in enumerate(layers)
    ]
    headers = ("layer", "F ms", "I ms", "W ms", "comm ms", "activation MiB", "parameters MiB", "output MiB")
    return ["", tabulate(rows, headers=headers, disable_numparse=True)]


def _fail(message: str) -> NoReturn:
    """End at once: a slow end lets the other ranks end first, and the command shows who ended first."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def _main() -> None:
    from benchmarks.launch import end_rank
    from benchmarks.progress import tell, tell_result

    given = json.loads(sys.argv[1])
    options = Options(**{**given, "at": tuple(given["at"]), "inputs": tuple(given["inputs"])})
    try:
        found = measured(options, tell)
    except click.ClickException as error:
        _fail(error.format_message())
    except AnnopipeError as error:  # the command shows the message, not where it was raised
        _fail(str(error))
    tell_result(json.dumps(dataclasses.asdict(found)))
    end_rank()


if __name__ == "__main__":
    _main()
