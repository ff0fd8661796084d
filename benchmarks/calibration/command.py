"""Predicted against paced: calibrate a limited network, measure a model's blocks, search, and run what is found.

annopipe bench calibration                       PP 2 x EP 2: some minutes
annopipe bench calibration --pipeline-ranks 4    PP 4 x EP 2
"""

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from annopipe.errors import AnnopipeError
from annopipe.simulation.files import refuse_unwritable, write_text
from annopipe.tuning.candidate import Candidate
from benchmarks import netlab
from benchmarks.calibration.choosing import candidates, check_names, workload
from benchmarks.calibration.plan import Measured, Runs
from benchmarks.calibration.report import Row, ranking, table
from benchmarks.moe.case import MoeCase
from benchmarks.moe.running import lab_of
from benchmarks.netlab.units import rate_bytes_per_s
from benchmarks.progress import result_of_ranks

__all__ = ["command", "measure"]

_TIMEOUT_S = 1200.0
_SCHEDULES = ("1f1b", "zb-h1", "interleaved-1f1b", "interleaved-zb", "zbv", "dualpipev")
_WITHIN = 0.05
_POSITIVE = click.FloatRange(0, min_open=True)


@click.command("calibration")
@click.option("--pipeline-ranks", type=click.IntRange(2), default=2, show_default=True)
@click.option("--expert-ranks", type=click.IntRange(2), default=2, show_default=True)
@click.option("--microbatches", type=click.IntRange(1), help="4 for each pipeline rank by default.")
@click.option("--layers", type=click.IntRange(2), default=2, show_default=True, help="Blocks for each pipeline rank.")
@click.option("--head", type=_POSITIVE, default=2.0, show_default=True, help="How much longer the last block computes.")
@click.option("--ratio", type=_POSITIVE, default=1.0, show_default=True, help="Paced computation over communication.")
@click.option("--rate", default="50mbit", show_default=True, help="Of the medium that an expert group shares.")
@click.option("--network", type=click.Choice(["namespaces", "loopback"]), default="namespaces", show_default=True)
@click.option("--schedule", "schedules", multiple=True, help=f"Of the library; {', '.join(_SCHEDULES)} by default.")
@click.option("--found", type=click.IntRange(0), default=4, show_default=True, help="Of the search.")
@click.option("--effort", type=click.IntRange(1), default=50_000, show_default=True, help="Of each of two searches.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="In alternation.")
@click.option("--check", is_flag=True, help="Exit code 1 unless all are within 5% and ranked as they are.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write everything as JSON.")
def command(json_path: Path | None, *, check: bool, found: int, effort: int, seed: int, **options: Any) -> None:
    """Predict paced steps from a calibration: library schedules and found ones, predicted beside paced."""
    if options["network"] == "namespaces" and (reason := netlab.available()):
        raise AnnopipeError(f"no network namespaces here: {reason}; --network loopback is not limited")
    rate, wanted, schedules = options.pop("rate"), options.pop("microbatches"), options.pop("schedules") or _SCHEDULES
    case = MoeCase(
        **{
            **options,
            "microbatches": wanted or 4 * options["pipeline_ranks"],
            "rate_bytes_per_s": rate_bytes_per_s(rate),
        }
    )
    check_names(case, schedules)
    if json_path:
        refuse_unwritable(json_path)  # before minutes of measuring
    console = Console(stderr=True)
    result = measure(case, schedules, found, effort, seed, lambda text: console.print(text, highlight=False))
    rows = [Row(**{**row, "rounds_s": tuple(row["rounds_s"])}) for row in result["rows"]]
    click.echo(_about(case, result))
    click.echo(table(rows))
    if json_path:
        write_text(json_path, json.dumps(result, indent=1) + "\n")
    if result["gradients_differ"]:
        raise AnnopipeError(f"the gradients of two schedules differ: {', '.join(result['gradients_differ'])}")
    if check and (ranking(rows).wrong or any(abs(row.ratio - 1.0) > _WITHIN for row in rows)):
        raise click.exceptions.Exit(1)


def measure(
    case: MoeCase,
    schedules: Sequence[str],
    found: int,
    effort: int,
    seed: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Calibrate, search and run; everything as plain data."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(lab_of(case) or contextlib.nullcontext())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def ranks_of(module: str, text: str) -> str:
            return result_of_ranks(module, case.ranks, [text], lab=lab, timeout_s=_TIMEOUT_S, progress=progress)

        measured = Measured.from_json(ranks_of("benchmarks.calibration.measuring", case.to_json()))
        work = workload(case, measured)
        progress("searching")
        chosen = _named(candidates(work, schedules, found=found, effort=effort, seed=seed))
        for index, each in enumerate(chosen.values()):
            each.save(folder / f"{index}.toml")
        configs = {name: str(folder / f"{index}.toml") for index, name in enumerate(chosen)}
        ran = json.loads(ranks_of("benchmarks.calibration.running", Runs(case, measured, configs).to_json()))
    rows = [
        {
            "schedule": name,
            "library": bool(each.trial.rules.library),
            "predicted_s": each.timeline.makespan,
            "planned_s": ran["planned"][name],
            "rounds_s": ran["seconds"][name],
        }
        for name, each in chosen.items()
    ]
    return {
        "case": dataclasses.asdict(case),
        "measured": json.loads(measured.to_json()),
        "workload": work.to_toml(),
        "gradients_differ": ran["gradients_differ"],
        "rows": rows,
    }


def _about(case: MoeCase, result: dict[str, Any]) -> str:
    lines = {name: result["measured"][name] for name in ("exchange", "send")}
    said = [
        f"{what} {lines[name]['latency_s'] * 1e6:.0f} us + bytes / {lines[name]['bandwidth'] / 1e6:.2f} MB/s"
        for name, what in (("exchange", "all-to-alls"), ("send", "messages"))
    ]
    equal = "GRADIENTS DIFFER" if result["gradients_differ"] else "gradients agree"
    model = f"{case.title}, {case.blocks} blocks, the last one {case.head:g} times as long"
    said.append(f"{result['measured']['in_flight']} transfers of a group move at a time")
    return f"{model}; {equal}\nmeasured: {'; '.join(said)}"


def _named(several: Sequence[Candidate]) -> dict[str, Candidate]:
    """By name, with a number where several have the same."""
    found: dict[str, Candidate] = {}
    for each in several:
        alike = sum(name.startswith(each.name) for name in found)
        found[f"{each.name} #{alike + 1}" if alike else each.name] = each
    return found
