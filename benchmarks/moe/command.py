"""Steps of a small mixture of experts under pipeline schedules: measured, simulated, and against the eager runtime.

annopipe bench moe                      PP 2 x EP 2 and PP 4 x EP 2, paced: some minutes
annopipe bench moe --quick              PP 2 x EP 2, a few microbatches
annopipe bench moe --real               real computation, 2 ranks share the experts of both stages
annopipe bench moe --nano-batches 2     dualpipev (or --schedule) with nano-batches against without, by phase
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from annopipe.errors import AnnopipeError
from benchmarks import netlab
from benchmarks.moe.case import EAGER, NETWORKS, MoeCase
from benchmarks.moe.report import table
from benchmarks.netlab.units import rate_bytes_per_s
from benchmarks.progress import result_of_ranks

__all__ = ["command", "lab_of", "run_case"]

_WORKER = "benchmarks.moe.worker"
_TIMEOUT_S = 1200.0
_REAL: dict[str, Any] = {"pipeline_ranks": 1, "paced": False, "layers": 2, "rows": 256, "width": 256, "top_k": 2}
_RATE = {False: "100mbit", True: "400mbit"}  # of a real run: all-to-alls about as long as the computation


@click.command("moe")
@click.option("--pipeline-ranks", multiple=True, type=click.IntRange(1), help="Repeatable; 2 and 4 by default.")
@click.option("--expert-ranks", type=click.IntRange(1), default=2, show_default=True)
@click.option("--microbatches", type=click.IntRange(1), help="4 for each pipeline rank by default.")
@click.option("--schedule", "schedules", multiple=True, help=f"Repeatable; {', '.join(MoeCase.schedules)} by default.")
@click.option("--eager", multiple=True, type=click.Choice(EAGER), help="Repeatable; all by default.")
@click.option("--attach", "attaches", is_flag=True, help="The eager ones once more, with one line: ap.attach.")
@click.option(
    "--nano-batches", type=click.IntRange(2), help="Our schedules once more, dualpipev by default, with so many."
)
@click.option("--policy", default=MoeCase.policy, show_default=True, help="How combined graphs are ordered.")
@click.option("--ratio", default=MoeCase.ratio, show_default=True, help="Paced computation over communication.")
@click.option("--rate", help="Of the medium that an expert group shares; 100mbit by default, 400mbit with --real.")
@click.option("--network", type=click.Choice(["auto", *NETWORKS]), default="auto", show_default=True)
@click.option("--real", is_flag=True, help="Compute instead of waiting: 1 pipeline rank, at most a rank for each core.")
@click.option("--rounds", type=click.IntRange(1), default=MoeCase.rounds, show_default=True, help="In alternation.")
@click.option("--quick", is_flag=True, help="PP 2, 4 microbatches, one round.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def command(json_path: Path | None, **options: Any) -> None:
    """Time whole MoE training steps on our runtime and on PyTorch's eager one, measured beside simulated."""
    console = Console(stderr=True)
    results = [run_case(case, lambda text: console.print(text, highlight=False)) for case in _cases(options)]
    click.echo(table(results))
    if json_path:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps({"cases": results}, indent=1) + "\n", encoding="utf-8")
    if not all(result["gradients_agree"] for result in results):
        raise AnnopipeError("the gradients of two schedules differ; see the table")


def run_case(case: MoeCase, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run a case on its own processes; returns what rank 0 found."""
    with lab_of(case) or contextlib.nullcontext() as lab:
        found: dict[str, Any] = json.loads(
            result_of_ranks(
                _WORKER,
                case.ranks,
                [case.to_json()],
                lab=lab,
                timeout_s=_TIMEOUT_S,
                progress=lambda text: progress(f"{case.title}: {text}"),
            )
        )
    return found


def lab_of(case: MoeCase) -> netlab.NetLab | None:
    """The network namespaces of a case, a medium for each expert group; None where it wants none."""
    if case.network != "namespaces":
        return None
    rate = f"{case.rate_bytes_per_s * 8 / 1e3:.0f}kbit"
    return netlab.NetLab(case.ranks, rate, shared=True, media=case.pipeline_ranks)


def _cases(options: dict[str, Any]) -> list[MoeCase]:
    quick, real, nano = options["quick"], options["real"], options["nano_batches"]
    base = MoeCase(
        expert_ranks=options["expert_ranks"],
        policy=options["policy"],
        ratio=options["ratio"],
        rate_bytes_per_s=rate_bytes_per_s(options["rate"] or _RATE[real]),
        schedules=options["schedules"] or (("dualpipev",) if nano else MoeCase.schedules),
        eager=options["eager"] or (() if nano else MoeCase.eager),
        attaches=options["attaches"],
        nano_batches=nano or 1,
        rounds=1 if quick else options["rounds"],
    )
    base = dataclasses.replace(base, network=_network(options["network"]))
    if real:
        base = dataclasses.replace(base, **_REAL)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if base.ranks > cores:
            raise AnnopipeError(f"--real with {base.ranks} ranks on {cores} cores measures nothing: use fewer ranks")
    pipeline = [1] if real else options["pipeline_ranks"] or ([2] if quick else [2, 4])
    wanted = options["microbatches"]
    return [
        dataclasses.replace(base, pipeline_ranks=p, microbatches=wanted or (4 if quick else max(8, 4 * p)))
        for p in pipeline
    ]


def _network(asked: Any) -> Any:
    """What carries the messages: what was asked for, or the most real thing that this machine has."""
    if asked == "namespaces" and (reason := netlab.available()):
        raise AnnopipeError(f"no network namespaces here: {reason}; use --network emulated")
    if asked != "auto":
        return asked
    return "emulated" if netlab.available() else "namespaces"


if __name__ == "__main__":
    command()
