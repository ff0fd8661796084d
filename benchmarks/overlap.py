"""The overlap job: eager autograd, sequential graphs and each policy in alternation, on ranks over a real network.

    annopipe bench overlap                              two ranks, real computation and paced
    annopipe bench overlap --routing balanced,skewed    the same tokens spread evenly, and as in real training
    annopipe bench overlap --graph step --nano-batches 1,2 --paced    PP 1: one graph alone, with lanes and without
    annopipe bench overlap --ranks 4 --blocks 1,2,4 --paced --json out/overlap.json

Checks that all results are bitwise equal, and prints two tables: measured, simulated, lower bound and hidden share of
every order; hidden and exposed communication of every region, for each routing side by side; where a graph ran with
nano-batches and without, a third one says what these hide.
"""

import contextlib
import dataclasses
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from annopipe.errors import AnnopipeError
from annopipe.ordering.registry import find
from annopipe.processors import processors
from annopipe.simulation.files import refuse_unwritable, write_text
from benchmarks import netlab
from benchmarks.launch import run_ranks
from benchmarks.netlab.units import rate_bytes_per_s
from benchmarks.pair.case import NETWORKS, ROUTINGS, Case, GraphKind, NetworkKind, RoutingKind
from benchmarks.pair.limits import judge, limits_table
from benchmarks.pair.nano import key_of, nano_table
from benchmarks.pair.regions import regions_table
from benchmarks.pair.report import table
from benchmarks.pair.wording import run_text

__all__ = ["command", "run_cases"]

_WORKER = "benchmarks.pair.worker"
_TIMEOUT_S = 600.0
_GRAPHS: dict[str, tuple[GraphKind, ...]] = {
    "pair": ("pair",),
    "forward": ("forward",),
    "step": ("forward", "backward"),
}
_OFFERED = tuple(kind for kind in NETWORKS if kind != "pinned")  # that one is for gpu_check, with one rank


@click.command("overlap")
@click.option("--demo", is_flag=True, help="Fewer rounds: about a minute with the other defaults.")
@click.option("--ranks", type=click.IntRange(1), default=2, show_default=True, help="Processes, one rank each.")
@click.option("--blocks", default="2", show_default=True, help="Blocks of the stage; several cases with commas: 1,2,4.")
@click.option("--paced/--real", default=None, help="One kind of run; default: both, paced with more ranks than cores.")
@click.option("--network", type=click.Choice([*_OFFERED, "auto"]), default="auto", show_default=True)
@click.option("--rate", default="800mbit", show_default=True, help="Bandwidth that the ranks share, as tc writes it.")
@click.option(
    "--ratio",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Paced: computation over communication.",
)
@click.option(
    "--graph",
    type=click.Choice(list(_GRAPHS)),
    default="pair",
    show_default=True,
    help="What runs: a backward with a forward; a forward alone; or a step at PP 1: a forward, then a backward.",
)
@click.option(
    "--nano-batches",
    default="1",
    show_default=True,
    help="Lanes inside each graph; several cases with commas: 1,2 compares with and without.",
)
@click.option(
    "--split",
    type=click.Choice(["moe", "stage"]),
    default="moe",
    show_default=True,
    help="What nano-batches split: the tokens of each expert layer, or the batch of the stage (--batch 2 or more).",
)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Sequences per microbatch.")
@click.option("--sequence", type=click.IntRange(1), default=512, show_default=True, help="Tokens per sequence.")
@click.option(
    "--routing",
    default="learned",
    show_default=True,
    help="Where tokens go: learned (as the router says), balanced or skewed; several with commas: balanced,skewed.",
)
@click.option(
    "--skew",
    type=click.FloatRange(0),
    default=Case.skew,
    show_default=True,
    help="Skewed: the share of the n-th most popular expert is proportional to 1 / n**SKEW.",
)
@click.option("--policy", "policies", multiple=True, help="Policies or patterns to compare; default: all but torch.")
@click.option("--rounds", type=click.IntRange(1), help="Repetitions, in alternation.  [default: 9; with --demo 5]")
@click.option("--check", is_flag=True, help="Compare with the limits that annopipe sets itself; exit code 1 if missed.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default="out/overlap", show_default=True)
def command(**options: Any) -> None:
    """Hide an MoE pair's communication: eager, sequential and every policy, measured beside simulated.

    Timelines go to the folder --output, as HTML and, where matplotlib is installed, as PNG.
    """
    ranks = options["ranks"]
    cases = _cases(options, _network(options["network"], ranks))
    if options["json_path"]:
        refuse_unwritable(options["json_path"])
    results = run_cases(cases, ranks, options["rate"], Console(stderr=True))
    click.echo("\n\n".join(filter(None, (table(results), nano_table(results), regions_table(results)))))
    if options["json_path"]:
        _write_json(options["json_path"], results)
    for case in cases:
        for path in sorted(Path(case.output).glob("timeline.*")):
            click.echo(f"timeline: {path}")
    if not all(result["bitwise_equal"] for result in results):
        raise AnnopipeError("results differ from eager autograd; see the table")
    if options["check"]:
        judged = judge(results)
        click.echo(limits_table(judged))
        if not all(limit.kept for limit in judged):
            raise click.exceptions.Exit(1)


def _cases(options: dict[str, Any], network: NetworkKind) -> list[Case]:
    ranks, paced = options["ranks"], options["paced"]
    cores = processors()
    both = (False, True) if ranks <= cores else (True,)  # more ranks than cores: only paced times mean anything
    for name in options["policies"]:
        find(name)
    routings = [_routing(text) for text in options["routing"].split(",")]
    base = Case(
        network=network,
        rate_bytes_per_s=rate_bytes_per_s(options["rate"]),
        ratio=options["ratio"],
        sequence=options["sequence"],
        batch=options["batch"],
        nano_batched=options["split"],
        experts=8 if 8 % ranks == 0 else 4 * ranks,
        skew=options["skew"],
        rounds=options["rounds"] or (5 if options["demo"] else 9),
        policies=tuple(options["policies"]) or Case.policies,
    )
    lanes = sorted(_positive(text, "--nano-batches") for text in options["nano_batches"].split(","))
    if options["split"] == "stage" and options["batch"] < lanes[-1]:
        raise click.BadParameter(
            f"{lanes[-1]} nano-batches need --batch {lanes[-1]} or more", param_hint="--split stage"
        )
    cases = [
        dataclasses.replace(base, blocks=n, paced=kind, routing=routing, graph=graph, nano_batches=parts)
        for n in [_positive(text, "--blocks") for text in options["blocks"].split(",")]
        for kind in (both if paced is None else (paced,))
        for routing in routings
        for graph in _GRAPHS[options["graph"]]
        for parts in lanes
    ]
    return [dataclasses.replace(case, output=str(options["output"] / _folder(case))) for case in cases]


def _folder(case: Case) -> str:
    """Where the timelines of a case go."""
    name = f"{'paced' if case.paced else 'real'}-{case.blocks}"
    named = (case.routing, Case.routing), (case.graph, Case.graph), (f"nano{case.nano_batches}", "nano1")
    return "-".join([name, *(own for own, usual in named if own != usual)])


def run_cases(cases: list[Case], ranks: int, rate: str, console: Console) -> list[dict[str, Any]]:
    """Run each case on its own processes; returns what rank 0 found, case by case."""
    results: list[dict[str, Any]] = []
    whole: dict[tuple[Any, ...], float] = {}
    for number, case in enumerate(cases):
        if case.paced and case.nano_batches > 1:  # as much computation as without them
            case = dataclasses.replace(case, computation_s=whole.get(key_of(dataclasses.asdict(case))))  # noqa: PLW2901
        Path(case.output).mkdir(parents=True, exist_ok=True)
        mode = "paced" if case.paced else "real"
        what = run_text(dataclasses.asdict(case))
        title = f"case {number + 1} of {len(cases)}: {mode}, {what}, {case.routing}, {ranks} ranks"
        if console.is_terminal:
            with console.status(title) as status:
                results.append(_run_case(case, ranks, rate, lambda text, at=title: status.update(f"{at}: {text}")))
        else:
            results.append(_run_case(case, ranks, rate, lambda text, at=title: console.print(f"{at}: {text}")))
        whole[key_of(results[-1]["case"])] = results[-1]["computation_s"]
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
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*"))) if "+cpu" not in version("torch") else 0
    if asked == "nccl" and gpus < ranks:
        raise AnnopipeError(f"--network nccl needs a GPU for each of the {ranks} ranks, and there are {gpus}: use auto")
    if asked != "auto":
        kind: NetworkKind = asked  # click has checked it
        return kind
    if gpus >= ranks > 1:
        return "nccl"
    return "emulated" if netlab.available() else "namespaces"


def _positive(text: str, option: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise click.BadParameter(f"{text!r} is not a positive number", param_hint=option)
    return int(text)


def _routing(text: str) -> RoutingKind:
    for kind in ROUTINGS:
        if text.strip() == kind:
            return kind
    raise click.BadParameter(f"{text!r} is not one of {', '.join(ROUTINGS)}", param_hint="--routing")


def _write_json(path: Path, results: list[dict[str, Any]]) -> None:
    machine = {"python": platform.python_version(), "torch": version("torch"), "cores": processors()}
    write_text(path, json.dumps({"machine": machine, "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    command()
