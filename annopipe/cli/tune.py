"""``annopipe tune``: search for the best schedule of a workload, and say why it is."""

import contextlib
import json
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from annopipe.tuning.candidate import Candidate
    from annopipe.tuning.search import Progress
    from annopipe.tuning.workload import Workload

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  annopipe tune workloads.toml gpt5b-vocab-256k
  annopipe tune workloads.toml tight-memory --memory 16 --save out/run.toml --png out/run.png
"""
_PARTS = {
    "computing": "computing",
    "exposed": "communication inside actions, exposed",
    "filling": "before the first action",
    "waiting": "between actions (messages, too)",
    "draining": "after the last action",
}


@click.command("tune", epilog=_EXAMPLES)
@click.argument("path", metavar="FILE.toml")
@click.argument("name", required=False)
@click.option(
    "--memory", type=click.FloatRange(0), metavar="AMOUNT", help="Most that a rank holds; the file's if left out."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same one finds the same everywhere.")
@click.option(
    "--effort",
    type=click.IntRange(1),
    help="How many actions are generated; more finds more.  [default: 1200000, some 20 seconds on two cores]",
)
@click.option(
    "--copies", type=click.IntRange(1, 2), default=2, show_default=True, help="Of the model on the ranks, at most."
)
@click.option("--workers", type=click.IntRange(1), help="Processes that search; one for each core if left out.")
@click.option("--best", type=click.IntRange(1), default=5, show_default=True, help="How many to list.")
@click.option(
    "--save", metavar="PATH.toml", help="Write the best as a config for ap.Pipeline.from_config, and its CSV."
)
@click.option("--png", metavar="PATH", help="Draw the best and the library's best (needs matplotlib).")
@click.option("--html", metavar="PATH", help="The same as a page for a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def command(
    path: str,
    name: str | None,
    *,
    memory: float | None,
    seed: int,
    effort: int | None,
    copies: int,
    workers: int | None,
    best: int,
    save: str | None,
    png: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Search for the schedule with the shortest step: stages, placement, order, limits, recomputation.

    FILE.toml has [[workload]] tables; NAME says which where there are several. What is printed first is never worse
    than the best schedule of the library with its layers evenly over the stages, which is listed, too.
    """
    from annopipe.tuning.tuner import DEFAULT_EFFORT, tune
    from annopipe.tuning.workload import Workload

    if save and not save.endswith(".toml"):
        raise click.BadParameter(f"{save}: a config is TOML, give a name that ends in .toml", param_hint="--save")
    work = Workload.from_toml(path, name)
    with _bar() as report:
        found = tune(
            work,
            memory=memory,
            seed=seed,
            effort=effort or DEFAULT_EFFORT,
            copies=copies,
            workers=workers,
            best=best,
            report=report,
        )
    library = next((candidate for candidate in found if candidate.trial.rules.library), None)
    if as_json:
        plain = {"workload": work.name, "bound": found[0].bound, "found": [_plain(each) for each in found]}
        click.echo(json.dumps(plain, indent=1))
    else:
        click.echo("\n".join(_text(work, found, library)))
    if save:
        found[0].save(save)
        click.echo(f"wrote {save}", err=True)
    _draw(work, found[0], library, png, html)


@contextlib.contextmanager
def _bar() -> "Iterator[Callable[[Progress], None] | None]":
    """A bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("library", total=1.0)

        def report(progress: "Progress") -> None:
            text = f"{progress.part}: {progress.trials} tried, best {progress.best:g}"
            bar.update(task, completed=progress.share, description=text)

        yield report


def _plain(candidate: "Candidate") -> dict[str, Any]:
    timeline, layout = candidate.timeline, candidate.trial.layout
    return {
        "name": candidate.name,
        "library": bool(candidate.trial.rules.library),
        "makespan": timeline.makespan,
        "of_bound": candidate.gap,
        "bubble": timeline.bubble,
        "peak_memory": timeline.peak_memory,
        "ranks_of_stages": layout.placement.rank_of,
        "copies": layout.placement.copies,
        "layers_of_stages": layout.bounds,
        "recomputed_layers": layout.recomputed,
        "account": candidate.account.plain(),
    }


def _text(work: "Workload", shown: "Sequence[Candidate]", library: "Candidate | None") -> list[str]:
    from annopipe.cli.schedule.options import width_of_terminal
    from annopipe.simulation.tables import table

    width = width_of_terminal()
    rows = [("schedule", "step", "of the bound", "bubble", "peak memory", "stages")]
    for candidate in shown:
        timeline = candidate.timeline
        rows.append(
            (
                f"{candidate.name}{' (library)' if candidate.trial.rules.library else ''}",
                f"{timeline.makespan:.5g}",
                f"{candidate.gap:.3f}",
                f"{timeline.bubble:.1%}",
                f"{timeline.peak_memory:.4g}",
                str(candidate.trial.layout.placement.stages),
            )
        )
    best = shown[0]
    lines = [f"{work.name}: {work.ranks} ranks, {work.microbatches} microbatches, bound {best.bound:.5g}", ""]
    lines += [*table(rows, width, left=(0,)), ""]
    lines += textwrap.wrap(f"layers of the best one's stages: {_layers(best)}", width, subsequent_indent="  ")
    if library is not None and best is not library:
        lines += ["", *_why(best, library, width)]
    elif best is library:
        lines += ["", "the best is one of the library, with its layers evenly over the stages"]
    return lines


def _layers(candidate: "Candidate") -> str:
    layout = candidate.trial.layout
    texts = []
    for stage, (start, end) in enumerate(layout.bounds):
        again = layout.recomputed[stage] if layout.recomputed else 0
        texts.append(
            f"{start}-{end - 1} on rank {layout.placement.rank_of[stage]}" + (f" ({again} again)" if again else "")
        )
    return "; ".join(texts)


def _why(best: "Candidate", library: "Candidate", width: int) -> list[str]:
    """Which part of the library's best step the search has made shorter."""
    from annopipe.simulation.tables import table

    ours, theirs = best.account, library.account
    gains = ours.gains(theirs)
    rows = [("mean over the ranks", library.name, "best", "saved")]
    for part, said in _PARTS.items():
        rows.append((said, f"{theirs.plain()[part]:.4g}", f"{ours.plain()[part]:.4g}", f"{gains[part]:+.4g}"))
    ratio = library.timeline.makespan / best.timeline.makespan
    rows.append(("the step", f"{library.timeline.makespan:.5g}", f"{best.timeline.makespan:.5g}", f"{ratio:.3f}x"))
    return table(rows, width, left=(0,))


def _draw(work: "Workload", best: "Candidate", library: "Candidate | None", png: str | None, html: str | None) -> None:
    from annopipe.simulation.ranks import html as pages
    from annopipe.simulation.ranks import png as pictures

    drawn = {f"{'library' if best is library else 'found'}: {best.name}": best.timeline}
    if library is not None and library is not best:
        drawn[f"library: {library.name}"] = library.timeline
    for path, write in ((png, pictures.write), (html, pages.write)):
        if path:
            write(path, drawn, f"{work.name}: {work.ranks} ranks, {work.microbatches} microbatches")
            click.echo(f"wrote {path}", err=True)
