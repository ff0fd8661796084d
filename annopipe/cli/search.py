"""``annopipe bench search``: the options and tables; ``benchmarks.search`` compares with proven optima."""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import click
from tabulate import tabulate

if TYPE_CHECKING:
    from benchmarks.search.comparison import Row

__all__ = ["command"]

_POLICIES = ("sequential", "alternate", "dualpipe", "megatron", "list", "auto", "search")


@click.command("search")
@click.option("--quick", is_flag=True, help="Only the problems of up to 60 tasks, and no large graph.")
@click.option("--prove", type=click.FloatRange(0, min_open=True), help="Prove again, so many seconds each (OR-tools).")
@click.option("--nodes", type=click.IntRange(1), default=5_000, show_default=True, help="Size of the large graph.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(prove: float | None, nodes: int, *, quick: bool, as_json: bool) -> None:
    """Compare policy search with proven optima (simulated), and time it on a large graph (measured, one thread)."""
    from benchmarks.planning import measure
    from benchmarks.search.comparison import compared, proved_now, proved_so_far
    from benchmarks.search.problems import large, suite

    problems = suite() if quick else {**suite(), **large()}
    known = proved_so_far() if prove is None else {name: proved_now(p, prove) for name, p in problems.items()}
    rows = list(compared(problems, _POLICIES, known))
    size, times = (0, {}) if quick else measure(nodes, 3, ("list", "auto", "search"))
    if as_json:
        found = [{**dataclasses.asdict(row), "ok": row.is_within_limit} for row in rows]
        click.echo(json.dumps({"problems": found, "nodes": size, "seconds": times}, indent=1))
    else:
        _print(rows)
        for name, steps in times.items():
            told = ", ".join(f"{seconds:.2f}" for seconds in steps["plan"])
            click.echo(f"a pair of {size} nodes, {name}: planned in {told} s, measured")
    sys.exit(0 if all(row.is_within_limit for row in rows) else 1)


def _print(rows: "list[Row]") -> None:
    from benchmarks.search.comparison import LIMITS

    table = [
        (
            row.name,
            row.tasks,
            row.reference.time_us / 1e3,
            row.reference.kind,
            *row.over.values(),
            row.seconds["search"],
        )
        for row in rows
    ]
    headers = ("problem", "tasks", "ms", "proven", *_POLICIES, "s")
    floats = ("", "", ".1f", "", *[".3f"] * len(_POLICIES), ".2f")
    click.echo("simulated makespans over what CP-SAT proved; s: what search took, measured")
    click.echo(tabulate(table, headers=headers, floatfmt=floats))
    for kind, limit in LIMITS.items():
        worst = max((row.over["search"] for row in rows if row.reference.kind == kind), default=None)
        if worst is not None:
            click.echo(f"search is at most {worst:.4f} of the {kind}; the limit is {limit}")
