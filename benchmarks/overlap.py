"""The overlap job: eager autograd, sequential graphs and each policy in alternation, on ranks over a real network.

    annopipe bench overlap                              two ranks, real computation and paced
    annopipe bench overlap --ranks 4 --blocks 1,2,4 --paced --json out/overlap.json

Checks that all results are bitwise equal, and prints one table: measured, simulated, lower bound, hidden share.
"""

import contextlib
import dataclasses
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from annopipe.errors import AnnopipeError
from benchmarks import netlab
from benchmarks.launch import run_ranks
from benchmarks.netlab.units import rate_bytes_per_s
from benchmarks.pair.case import NETWORKS, Case, NetworkKind
from benchmarks.pair.report import table

__all__ = ["command", "run_cases"]

_WORKER = "benchmarks.pair.worker"
_TIMEOUT_S = 600.0
_DEMO_BLOCKS = 2


@click.command("overlap")
@click.option("--demo", is_flag=True, help="A small case in about a minute.")
@click.option("--ranks", type=click.IntRange(1), default=2, show_default=True, help="Processes, one rank each.")
@click.option("--blocks", default="2", show_default=True, help="Blocks of the stage; several cases with commas: 1,2,4.")
@click.option("--paced/--real", default=None, help="Only paced, or only real computation; default: both.")
@click.option("--network", type=click.Choice([*NETWORKS, "auto"]), default="auto", show_default=True)
@click.option("--rate", default="800mbit", show_default=True, help="Bandwidth that the ranks share, as tc writes it.")
@click.option("--ratio", default=1.0, show_default=True, help="Paced: computation over communication.")
@click.option("--sequence", type=click.IntRange(1), default=512, show_default=True, help="Tokens per sequence.")
@click.option("--policy", "policies", multiple=True, help="Policies to compare; default: all that come with annopipe.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Repetitions, in alternation.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the results as JSON too.")
@click.option("--output", default="out/overlap", show_default=True, help="Folder for the HTML timelines.")
def command(**options: Any) -> None:
    """Hide an MoE pair's communication: eager, sequential and every policy, measured beside simulated."""
    console = Console(stderr=True)
    rate_bytes = rate_bytes_per_s(options["rate"])
    network = _network(options["network"], options["ranks"])
    blocks = [_DEMO_BLOCKS] if options["demo"] else [_positive(text) for text in options["blocks"].split(",")]
    modes = (False, True) if options["paced"] is None else (options["paced"],)
    base = Case(
        network=network,
        rate_bytes_per_s=rate_bytes,
        ratio=options["ratio"],
        sequence=options["sequence"],
        rounds=5 if options["demo"] else options["rounds"],
    )
    if options["policies"]:
        base = dataclasses.replace(base, policies=tuple(options["policies"]))
    folder = Path(options["output"])
    cases = [
        dataclasses.replace(base, blocks=n, paced=paced, output=str(folder / f"{'paced' if paced else 'real'}-{n}"))
        for n in blocks
        for paced in modes
    ]
    results = run_cases(cases, options["ranks"], options["rate"], console)
    click.echo(table(results))
    if options["json_path"]:
        _write_json(Path(options["json_path"]), results)
    for case in cases:
        click.echo(f"timeline: {Path(case.output) / 'timeline.html'}")
    if not all(result["bitwise_equal"] for result in results):
        raise AnnopipeError("results differ from eager autograd; see the table")


def run_cases(cases: list[Case], ranks: int, rate: str, console: Console) -> list[dict[str, Any]]:
    """Run each case on its own processes; returns what rank 0 found, case by case."""
    results = []
    for number, case in enumerate(cases):
        Path(case.output).mkdir(parents=True, exist_ok=True)
        mode = "paced" if case.paced else "real"
        title = f"case {number + 1} of {len(cases)}: {mode}, {case.blocks} blocks, {ranks} ranks"
        with console.status(title) as status:
            results.append(_run_case(case, ranks, rate, lambda text, title=title: status.update(f"{title}: {text}")))
        console.print(f"{title}: done")
    return results


def _run_case(case: Case, ranks: int, rate: str, progress: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def on_line(_rank: int, line: str) -> None:
        kind, _, text = line.partition(":")
        if kind == "progress":
            progress(text)
        elif kind == "result":
            found.append(json.loads(text))

    lab = netlab.NetLab(ranks, rate, shared=True) if case.network == "namespaces" else None
    with lab or contextlib.nullcontext():
        run_ranks(_WORKER, ranks, args=[case.to_json()], lab=lab, timeout_s=_TIMEOUT_S, on_line=on_line)
    if not found:
        raise AnnopipeError(
            "rank 0 ended without a result; run with --network loopback to see whether the network is at fault"
        )
    return found[0]


def _network(asked: Any, ranks: int) -> NetworkKind:
    """What carries the messages: what was asked for, or the most real thing that this machine has."""
    if asked == "namespaces" and (reason := netlab.available()):
        raise AnnopipeError(f"no network namespaces here: {reason}; use --network emulated")
    if asked != "auto":
        kind: NetworkKind = asked  # click has checked it
        return kind
    if len(list(Path("/dev").glob("nvidia[0-9]*"))) >= ranks > 1:
        return "nccl"
    return "emulated" if netlab.available() else "namespaces"


def _positive(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise click.BadParameter(f"{text!r} is not a positive number", param_hint="--blocks")
    return int(text)


def _write_json(path: Path, results: list[dict[str, Any]]) -> None:
    machine = {"python": platform.python_version(), "torch": version("torch"), "cores": os.cpu_count()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "cases": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    command()
