"""``annopipe report``: a benchmark's JSON as a table, or two of them compared."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from benchmarks.reporting.comparison import Change
    from benchmarks.reporting.runs import Run

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  annopipe report out/moe.json
  annopipe report out/before.json out/after.json
  annopipe report out/moe.json --html out/moe
"""
_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("report", epilog=_EXAMPLES)
@click.argument("path", metavar="RUN.json", type=_PATH)
@click.argument("other", metavar="[OTHER.json]", required=False, type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
@click.option(
    "--html",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Of a run of bench moe: write page.html and its pictures there (needs matplotlib), and print their paths.",
)
def command(path: Path, other: Path | None, folder: Path | None, *, as_json: bool) -> None:
    """Show a run that `annopipe bench moe` or `bench overlap` has written (--json), or what changed between two.

    A change counts if it is outside the noise: with three repetitions or more on both sides, no time of one run is
    within the range of the other's. One run alone is ranked, and what is within the noise of the first shares a place.
    """
    from benchmarks.reporting.comparison import compared
    from benchmarks.reporting.runs import Run

    if folder is not None:
        _write_page(path, folder, alone=other is None and not as_json)
        return
    run = Run.read(path)
    if other is None:
        click.echo(json.dumps(_plain_ranking(run), indent=1) if as_json else _ranked(run))
        return
    changes = compared(run, Run.read(other))
    click.echo(json.dumps([_plain(change) for change in changes], indent=1) if as_json else _changes(changes))


def _write_page(path: Path, folder: Path, *, alone: bool) -> None:
    from benchmarks.moe_page import write_page_of

    if not alone:
        raise click.UsageError("--html writes the page of one run: leave out OTHER.json and --json")
    click.echo("\n".join(map(str, write_page_of(path, folder))))


def _ranked(run: "Run") -> str:
    from tabulate import tabulate

    from benchmarks.reporting.comparison import ranking

    lines = []
    for title, case in zip(run.titles(), run.cases, strict=True):
        rows = [
            (
                place,
                row.name,
                _ms(row.measured_s),
                f"{_ms(row.fastest_s)}-{_ms(row.slowest_s)}",
                _ms(row.simulated_s),
                "" if not row.simulated_s else f"{row.measured_s / row.simulated_s:.3f}",
            )
            for place, row in ranking(list(case.rows.values()))
        ]
        heads = ("place", "what", "ms", "spread", "simulated", "ms/simulated")
        lines += [f"{run.path}: {title}", tabulate(rows, heads, disable_numparse=True), ""]
    return "\n".join(lines).rstrip()


def _plain_ranking(run: "Run") -> list[dict[str, Any]]:
    from dataclasses import asdict

    from benchmarks.reporting.comparison import ranking

    return [
        {
            "case": dict(case.settings),
            "rows": [{"place": place, **asdict(row)} for place, row in ranking(list(case.rows.values()))],
        }
        for case in run.cases
    ]


def _changes(changes: "list[Change]") -> str:
    from tabulate import tabulate

    rows = [
        (
            change.case,
            change.name,
            *(_ms(None if row is None else row.measured_s) for row in (change.before, change.after)),
            "" if change.ratio is None else f"{change.ratio:.3f}",
            change.verdict,
        )
        for change in changes
    ]
    counts = {
        verdict: sum(change.verdict == verdict for change in changes) for verdict in ("faster", "slower", "noise")
    }
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "nothing to compare"
    unsure = sum(change.verdict == "?" for change in changes)
    if unsure:
        said += f"; {unsure} with fewer than three repetitions, of which nothing can be said"
    heads = ("case", "what", "ms before", "ms after", "after/before", "verdict")
    return f"{tabulate(rows, heads, disable_numparse=True)}\n\n{said}"


def _plain(change: "Change") -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(change), "ratio": change.ratio, "verdict": change.verdict}


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"
