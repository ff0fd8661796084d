"""``annopipe inspect MODULE``: trace a model and print its region table."""

import collections
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import click
from tabulate import tabulate

import annopipe as ap
from annopipe.cli.loading import load_model

__all__ = ["command"]

_GRAPHS = ("forward", "backward", "backward-input", "backward-weight")


_TAGS = ("tag", "foreign tag")  # rules by which a region is what someone wrote; the others are guesses


@click.command("inspect")
@click.argument("module")
@click.option("--input", "inputs", multiple=True, metavar="SHAPE[:DTYPE]", help="Example input: 2,16,32 or 2,16:int64.")
@click.option("--graph", "which", type=click.Choice(_GRAPHS), multiple=True, help="Only these graphs; default: all.")
@click.option("--nodes", is_flag=True, help="One row per node instead of one per region.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--strict", is_flag=True, help="Capture by Dynamo, which guards Python values.")
def command(
    module: str, inputs: tuple[str, ...], which: tuple[str, ...], *, nodes: bool, as_json: bool, strict: bool
) -> None:
    """Trace a model and print which region, kind and phase its nodes have.

    MODULE is package.module:name or path/to/file.py:name. The name is an nn.Module (a class that needs no arguments, or
    an instance; give --input), or a function that returns (module, args) or (module, args, kwargs).

    A process group of one rank is there, so that models with collectives can be traced.

    Examples: annopipe inspect annopipe.models:tiny_stage; annopipe inspect torch.nn:Tanh --input 2,3
    """
    with _one_rank():
        model, args, kwargs = load_model(module, inputs)
        graphs = ap.trace(model, args, kwargs, strict=strict)
    found = {name: getattr(graphs, name.replace("-", "_")) for name in which or _GRAPHS}
    if which and any(graph is None for graph in found.values()):
        raise click.UsageError("there is no backward: no parameter and no example argument requires grad")
    tables = {name: ap.region_table(graph) for name, graph in found.items() if graph is not None}
    if as_json:
        fields = ("region", "kind", "lane", "phase", "rule")
        rows = {
            name: [{"node": row.node.name, **{f: getattr(row, f) for f in fields}} for row in table]
            for name, table in tables.items()
        }
        click.echo(json.dumps(rows, indent=1))
        return
    for name, table in tables.items():
        click.echo(f"\n{name}: {len(table)} nodes")
        click.echo(_node_table(table) if nodes else _region_summary(table))
    if not any(row.rule in _TAGS for table in tables.values() for row in table):
        click.echo(
            "\nThe model has no tags: regions are guessed from the names of modules. Put what belongs together under "
            'ap.region("attention"), and transfers under ap.comm("dispatch").',
            err=True,
        )


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
    import torch.distributed as dist

    if not dist.is_available() or dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _node_table(table: list[Any]) -> str:
    rows = [(row.node.name, row.region, row.kind, row.lane, row.phase, row.rule) for row in table]
    return tabulate(rows, headers=("node", "region", "kind", "lane", "phase", "rule"))


def _region_summary(table: list[Any]) -> str:
    counts: dict[tuple[str, str, str], collections.Counter[str]] = {}
    for row in table:
        counts.setdefault((row.region, row.lane, row.phase), collections.Counter()).update([row.kind, row.rule])
    kinds = ("compute", "launch", "wait", "host")
    rows = [
        (
            *key,
            *(count[kind] or "" for kind in kinds),
            sum(count[k] for k in kinds) - sum(count[t] for t in _TAGS) or "",
        )
        for key, count in counts.items()
    ]
    return tabulate(rows, headers=("region", "lane", "phase", *kinds, "placed by rule"))
