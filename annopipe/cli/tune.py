"""``annopipe tune``: search for the best schedule of a workload, and say why it is."""

import contextlib
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from annopipe.tuning.candidate import Candidate
    from annopipe.tuning.model_workload import ModelWorkload
    from annopipe.tuning.search import Progress
    from annopipe.tuning.workload import Workload

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  annopipe tune workloads.toml gpt5b-vocab-256k
  annopipe tune workloads.toml tight-memory --memory 16 --save out/run.toml --png out/run.png
  annopipe tune --model deepseek-v3-16b --cluster h100x64.toml --batch 512
  annopipe tune --model gpt-5b-256k --cluster h100x64.toml --ranks 8 --microbatch-size 1
"""
# As in annopipe.workloads.shipped, which imports torch.
_MODELS = (
    "deepseek-v3-671b, deepseek-v3-16b, qwen3-30b-a3b, mixtral-8x7b, gpt-5b-32k, gpt-5b-64k, gpt-5b-128k, gpt-5b-256k, "
    "gpt-5b-512k, two-tower-l14 or two-tower-bigg14"
)
_BATCH, _SEQUENCE = 512, 4096


@click.command("tune", epilog=_EXAMPLES)
@click.argument("path", metavar="[FILE.toml]", required=False)
@click.argument("name", required=False)
@click.option("--model", metavar="NAME", help=f"Instead of a file: a model that is traced and priced, {_MODELS}.")
@click.option("--cluster", metavar="CLUSTER.toml", help="The devices that the model is for.")
@click.option("--batch", type=click.IntRange(1), help="Sequences of one step of a model.  [default: 512]")
@click.option("--sequence", type=click.IntRange(1), help="Tokens of a sequence of a model.  [default: 4096]")
@click.option(
    "--ranks", type=click.IntRange(1), help="Ranks of one pipeline; searched if left out, as are the next three."
)
@click.option("--data", type=click.IntRange(1), help="Pipelines side by side, each with its part of the batch.")
@click.option("--expert", type=click.IntRange(1), help="Pipelines that share one set of experts; divides --data.")
@click.option("--microbatch-size", type=click.IntRange(1), help="Sequences of one microbatch.")
@click.option(
    "--memory",
    type=click.FloatRange(0),
    metavar="AMOUNT",
    help="Most that a rank holds, in the unit of the file (bytes of a model); the file's if left out.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same one finds the same everywhere.")
@click.option(
    "--effort",
    type=click.IntRange(1),
    help="How many actions are generated; more finds more.  [default: 650000, 10 to 20 seconds on two cores]",
)
@click.option(
    "--copies",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="Most copies of the model on the ranks; 2 shares long layers.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes that search; one for each core if left out.")
@click.option("--best", type=click.IntRange(1), default=5, show_default=True, help="How many to list.")
@click.option(
    "--save", metavar="PATH.toml", help="Write the best as a config for ap.Pipeline.from_config, and its CSV."
)
@click.option("--png", metavar="PATH", help="Draw the best and the library's best (needs matplotlib).")
@click.option("--html", metavar="PATH", help="The same as a page for a browser.")
@click.option("--results", metavar="PATH", help="Keep what was tried in a file; after Ctrl-C, run again to go on.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def command(
    path: str | None,
    name: str | None,
    *,
    model: str | None,
    cluster: str | None,
    batch: int | None,
    sequence: int | None,
    memory: float | None,
    seed: int,
    effort: int | None,
    copies: int,
    workers: int | None,
    best: int,
    save: str | None,
    png: str | None,
    html: str | None,
    results: str | None,
    as_json: bool,
    **degrees: int | None,
) -> None:
    """Search for the schedule with the shortest step: stages, placement, order, limits, recomputation.

    FILE.toml has [[workload]] tables; NAME says which where there are several. What is printed first is never worse
    than the best schedule of the library with its layers evenly over the stages, which is listed, too. Of a model the
    degrees of pipeline, data and expert parallelism are searched, and the size of a microbatch; times are seconds then,
    memory is bytes.
    """
    from annopipe.cli import tuned
    from annopipe.costs.cluster import Cluster
    from annopipe.simulation.files import refuse_unwritable
    from annopipe.simulation.pictures import painter
    from annopipe.tuning.tuner import DEFAULT_EFFORT, tune

    if save and not save.endswith(".toml"):
        raise click.BadParameter(f"{save}: a config is TOML, give a name that ends in .toml", param_hint="--save")
    for place in (save, png, html):
        if place:
            refuse_unwritable(place)
    if png:
        painter("pipeline", png)  # before the search, not behind it
    work = _work(path, name, model, cluster, batch, sequence)
    with _bar() as report:
        found = tune(
            work,
            Cluster.from_toml(cluster) if cluster else None,
            memory=memory,
            **degrees,
            seed=seed,
            effort=effort or DEFAULT_EFFORT,
            copies=copies,
            workers=workers,
            best=best,
            report=report,
            results=results,
        )
    library = next((candidate for candidate in found if candidate.trial.rules.library), None)
    if as_json:
        plain = {"workload": work.name, "bound": found[0].bound, "found": [_plain(each) for each in found]}
        click.echo(json.dumps(plain, indent=1))
    else:
        click.echo("\n".join(tuned.lines(found, library)))
    if save:
        found[0].save(save)
        click.echo(f"wrote {save}", err=True)
    _draw(found[0], library, png, html)


def _work(
    path: str | None, name: str | None, model: str | None, cluster: str | None, batch: int | None, sequence: int | None
) -> "Workload | ModelWorkload":
    from annopipe.tuning.workload import Workload

    if (path is None) == (model is None):
        raise click.UsageError("give a FILE.toml with workloads, or --model and --cluster")
    if path is not None:
        for option, value in {"batch": batch, "sequence": sequence}.items():
            if value is not None:
                raise click.UsageError(f"--{option} is of a --model: leave it out, the file says how long things take")
        return Workload.from_toml(path, name)
    if cluster is None:
        raise click.UsageError(f"--model {model}: give --cluster, the file of the devices that it is for")
    return Workload.from_model(model, batch=batch or _BATCH, sequence=sequence or _SEQUENCE)


@contextlib.contextmanager
def _bar() -> "Iterator[Callable[[Progress], None]]":
    """A bar on a terminal; elsewhere nothing but that a search was interrupted."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("library", total=1.0)

        def report(progress: "Progress") -> None:
            if progress.part == "interrupted":
                click.echo("interrupted: this is the best so far; the same command goes on from there", err=True)
            text = f"{progress.part}: {progress.trials} tried, best {progress.best:g}"
            bar.update(task, completed=progress.share, description=text)

        yield report


def _plain(candidate: "Candidate") -> dict[str, Any]:
    timeline, layout = candidate.timeline, candidate.trial.layout
    return {
        "name": candidate.name,
        "library": bool(candidate.trial.rules.library),
        "makespan": timeline.makespan,
        "step": candidate.step,
        "degrees": dataclasses.asdict(candidate.degrees) if candidate.degrees else None,
        "of_bound": candidate.gap,
        "bubble": timeline.bubble,
        "peak_memory": timeline.peak_memory,
        "ranks_of_stages": layout.placement.rank_of,
        "copies": layout.placement.copies,
        "layers_of_stages": layout.bounds,
        "recomputed_layers": layout.recomputed,
        "account": candidate.account.plain(),
    }


def _draw(best: "Candidate", library: "Candidate | None", png: str | None, html: str | None) -> None:
    from annopipe.cli import tuned
    from annopipe.simulation.ranks import html as pages
    from annopipe.simulation.ranks import png as pictures

    drawn = {f"{'library' if best is library else 'found'}: {best.name}": best.timeline}
    if library is not None and library is not best:
        drawn[f"library: {library.name}"] = library.timeline
    for path, write in ((png, pictures.write), (html, pages.write)):
        if path:
            write(path, drawn, tuned.heading(best))
            click.echo(f"wrote {path}", err=True)
