"""Steps of mixtures of experts under pipeline schedules: measured, simulated, and against the eager runtime.

annopipe bench moe                              the full set of configurations: up to 45 minutes
annopipe bench moe --quick                      PP 2 x EP 2 paced, and a simulated 16B model: up to 5 minutes
annopipe bench moe --config tiny --skew 1.5     one of them, changed
annopipe bench moe --config mine.toml --json out/mine.json
"""

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from annopipe.errors import AnnopipeError
from annopipe.simulation.files import refuse_unwritable, write_text
from annopipe.simulation.pictures import drawing_module
from benchmarks.moe.case import NETWORKS
from benchmarks.moe.choosing import chosen_configs
from benchmarks.moe.config import Config
from benchmarks.moe.grid import Grid, grid
from benchmarks.moe.report import report
from benchmarks.moe.results import Results
from benchmarks.moe.running import case_of, measure
from benchmarks.moe.simulated import check, simulate
from benchmarks.moe.variant import EAGER
from benchmarks.moe_page import write_page
from benchmarks.signals import ENDED, exit_code, exit_on_signals

__all__ = ["command", "run"]


@click.command("moe")
@click.option("--config", "configs", multiple=True, help="Repeatable: a shipped one, or a .toml file. All by default.")
@click.option("--quick", is_flag=True, help="Two short configurations: a paced one, and a simulated 16B model.")
@click.option("--pipeline-ranks", type=click.IntRange(1), help="Instead of the configuration's, as all that follow.")
@click.option("--expert-ranks", type=click.IntRange(1))
@click.option("--data-ranks", type=click.IntRange(1), help="Copies of all other ranks, which sum their gradients.")
@click.option("--microbatches", type=click.IntRange(1))
@click.option("--schedule", "schedules", multiple=True, help="Repeatable.")
@click.option("--eager", multiple=True, type=click.Choice([*EAGER, "none"]), help="Repeatable.")
@click.option("--attach", "attached", is_flag=True, help="The eager ones once more, with one line: ap.attach.")
@click.option("--policy", "policies", multiple=True, help="Repeatable: how combined graphs are ordered.")
@click.option("--nano-batches", multiple=True, type=click.IntRange(2), help="Repeatable: rows with so many, too.")
@click.option("--skew", multiple=True, type=click.FloatRange(1.0), help="Repeatable: rows with skewed routing, too.")
@click.option("--ratio", type=float, help="Paced computation over communication.")
@click.option("--rate", help="Of the medium that an expert group shares, such as 100mbit.")
@click.option("--network", type=click.Choice(["auto", *NETWORKS]), help="What carries the messages.")
@click.option("--rounds", type=click.IntRange(1), help="Repetitions, in alternation.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
@click.option("--html", "folder", type=click.Path(path_type=Path), metavar="FOLDER", help="Write a page of them there.")
def command(json_path: Path | None, folder: Path | None, **options: Any) -> None:
    """Time whole MoE training steps on our runtime and on PyTorch's eager one, measured beside simulated."""
    configs = chosen_configs(options)
    if folder is not None:  # what the page needs is missed before anything runs
        drawing_module("benchmarks.moe_page.charts", folder, "leave out --html")
        refuse_unwritable(folder / "page.html")
    if json_path is not None:
        refuse_unwritable(json_path)
    results = run(configs, shlex.join(["annopipe", *sys.argv[1:]]))
    found = results.plain()
    if json_path is not None:  # first: a terminal that has hung up takes no text
        write_text(json_path, json.dumps(found) + "\n")
    click.echo(report(found))
    if folder is not None:
        click.echo("\n".join(map(str, write_page(found, folder))))
    if results.ended:
        raise click.exceptions.Exit(results.ended)
    if any(about.get("found", {}).get("gradients_differ") for about in found["configs"].values()):
        raise AnnopipeError("the gradients of two steps differ; see the table")


def run(configs: Sequence[Config], said: str = "") -> Results:
    """Run configurations one after the other; Ctrl-C, SIGTERM or SIGHUP ends it, and what is there stays.

    said: the command, for whoever reads the results.
    """
    grids = [(config, grid(config)) for config in configs]
    results = Results(grids, said)
    for config, _ in grids:
        if config.kind == "simulated":
            check(config)
    cases = {config.name: case_of(config, results.rows(config)) for config, _ in grids if config.kind != "simulated"}
    with exit_on_signals(), _bar(sum(_units(config, own) for config, own in grids)) as advance:
        try:
            for config, _ in grids:
                rows, about = results.rows(config), results.configs[config.name]

                def progress(text: str, name: str = config.name) -> None:
                    advance(f"{name}: {text}")

                if config.name in cases:
                    measure(cases[config.name], rows, about, progress)
                else:
                    simulate(config, rows, progress)
        except ENDED as ended:
            results.ended = exit_code(ended)
    return results


def _units(config: Config, own: Grid) -> int:
    """How often a configuration says what it does."""
    variants = own.variants
    if config.kind == "simulated":
        return len(variants) + len({(variant.compiled, variant.skew) for variant in variants})
    skews = len({variant.skew for variant in variants})
    return len(variants) * (config.rounds + 2) + skews  # prepared, once to warm up, in every round


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal; elsewhere a line for each thing that is begun."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=total)
    begun = 0

    def advance(text: str) -> None:
        nonlocal begun
        bar.update(task, completed=begun, description=text)
        begun += 1

    bar.start()
    try:
        yield advance
    finally:
        with contextlib.suppress(OSError):  # the terminal has hung up
            bar.stop()


if __name__ == "__main__":
    command()
