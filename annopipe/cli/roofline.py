"""``annopipe bench roofline``: the options and the table; ``benchmarks.roofline`` traces and computes."""

import dataclasses
import json
import textwrap
from pathlib import Path

import click
from tabulate import tabulate

__all__ = ["command"]


@click.command("roofline")
@click.option("--hardware", default="h800", show_default=True, help="A name that ap.costs.machine knows.")
@click.option("--tokens", type=click.IntRange(1), default=4096, show_default=True, help="Tokens per rank.")
@click.option("--layers", type=click.IntRange(1, 8), default=4, show_default=True, help="Layers to trace.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows there.")
def command(hardware: str, tokens: int, layers: int, json_path: Path | None) -> None:
    """Compare roofline costs of DeepSeek-V3 layers with their published kernel times (half a minute, no GPU)."""
    import annopipe as ap
    from annopipe.simulation.files import refuse_unwritable, write_text
    from benchmarks.roofline import RANKS, rows_for

    if json_path is not None:
        refuse_unwritable(json_path)
    machine = ap.costs.machine(hardware)
    click.echo(f"tracing {layers} layers without memory, then computing their costs: about half a minute", err=True)
    rows = rows_for(machine, tokens, layers)
    table = [(r.component, r.published_ms, r.traced_ms, r.traced_ratio, r.as_run_ms, r.as_run_ratio) for r in rows]
    click.echo(f"DeepSeek-V3, {tokens} tokens per rank, expert parallelism over {RANKS}: ms per layer, {machine.name}")
    click.echo("published: profile-data (H800, 4096 tokens); roofline: computed, not measured")
    headers = ("component", "published", "as traced", "ratio", "as published run", "ratio")
    click.echo(tabulate(table, headers=headers, floatfmt=".2f"))
    accounts = {row.account: [r for r in rows if r.account == row.account] for row in rows if row.account}
    for account, off in accounts.items():
        ratios = ", ".join(f"{row.component} is {row.as_run_ratio:.2f}" for row in off)
        click.echo("\n" + textwrap.fill(f"{ratios} of published: {account}.", 100))
    if json_path is not None:
        described = [{**dataclasses.asdict(row), "account": row.account} for row in rows]
        content = {"hardware": machine.name, "tokens": tokens, "layers": layers, "ranks": RANKS, "rows": described}
        write_text(json_path, json.dumps(content, indent=1) + "\n")
