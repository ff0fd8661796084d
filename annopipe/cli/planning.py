"""``annopipe bench planning``: the options and the table; ``benchmarks.planning`` measures."""

import json
import statistics

import click
from tabulate import tabulate

__all__ = ["command"]


@click.command("planning")
@click.option("--nodes", type=click.IntRange(1), default=10_000, show_default=True, help="Size of the combined graph.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Repetitions, in alternation.")
@click.option(
    "--policy",
    "names",
    multiple=True,
    help="Repeatable; all by default but torch, which takes minutes for a large graph, and optimal, which refuses it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(nodes: int, rounds: int, names: tuple[str, ...], *, as_json: bool) -> None:
    """Time multiplex, policy and reorder on one large graph (seconds, on one thread)."""
    from benchmarks.planning import measure

    size, times = measure(nodes, rounds, names)
    if as_json:
        click.echo(json.dumps({"nodes": size, "seconds": times}, indent=1))
        return
    rows = [
        (
            name,
            *(statistics.median(values) for values in steps.values()),
            f"{min(steps['all']):.3f}-{max(steps['all']):.3f}",
        )
        for name, steps in times.items()
    ]
    click.echo(f"{size} nodes, seconds, median of {rounds}, measured")
    click.echo(tabulate(rows, headers=("policy", *next(iter(times.values())), "spread"), floatfmt=".3f"))
