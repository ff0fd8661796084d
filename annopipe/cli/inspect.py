"""``annopipe inspect MODULE``: trace a model and print its region table."""

import collections
import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

import annopipe as ap

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["command"]

_GRAPHS = ("forward", "backward", "backward-input", "backward-weight")


@click.command("inspect")
@click.argument("module")
@click.option("--input", "inputs", multiple=True, metavar="SHAPE[:DTYPE]", help="Example input: 2,16,32 or 2,16:int64.")
@click.option("--graph", "which", type=click.Choice(_GRAPHS), multiple=True, help="Only these graphs; default: all.")
@click.option("--nodes", is_flag=True, help="One row per node instead of one per region.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(module: str, inputs: tuple[str, ...], which: tuple[str, ...], *, nodes: bool, as_json: bool) -> None:
    """Trace a model and print which region, kind and phase its nodes have.

    MODULE is package.module:name or path/to/file.py:name. The name is an nn.Module (a class that needs no arguments, or
    an instance; give --input), or a function that returns (module, args) or (module, args, kwargs).

    A process group of one rank is there, so that models with collectives can be traced.

    Examples: annopipe inspect annopipe.models:tiny_stage; annopipe inspect torch.nn:Tanh --input 2,3
    """
    with _one_rank():
        model, args, kwargs = _load(module, inputs)
        graphs = ap.trace(model, args, kwargs)
    found = {name: getattr(graphs, name.replace("-", "_")) for name in which or _GRAPHS}
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
        (*key, *(count[kind] or "" for kind in kinds), sum(count[k] for k in kinds) - count["tag"] or "")
        for key, count in counts.items()
    ]
    return tabulate(rows, headers=("region", "lane", "phase", *kinds, "placed by rule"))


def _load(spec: str, inputs: tuple[str, ...]) -> "tuple[nn.Module, tuple[Any, ...], dict[str, Any]]":
    from torch import nn

    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise click.BadParameter(f"{spec!r}: write package.module:name or path/to/file.py:name", param_hint="MODULE")
    target = _resolve(source, name)
    if isinstance(target, nn.Module) or (isinstance(target, type) and issubclass(target, nn.Module)):
        if not inputs:
            raise click.UsageError(f"{name} is a module: give an example input for each argument, as --input 2,16,32")
        model = target if isinstance(target, nn.Module) else _call(target, name)
        return model, tuple(_example(text) for text in inputs), {}
    made = _call(target, name)
    if isinstance(made, nn.Module) and inputs:
        return made, tuple(_example(text) for text in inputs), {}
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module)):
        raise click.UsageError(
            f"{name}() returned {type(made).__name__}: return (module, args) or (module, args, kwargs)"
        )
    return made[0], tuple(made[1]), dict(made[2]) if len(made) == 3 else {}


def _resolve(source: str, name: str) -> Any:
    if source.endswith(".py"):
        path = Path(source)
        found = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
        if found is None or found.loader is None:
            raise click.BadParameter(f"no Python file {source}", param_hint="MODULE")
        module = importlib.util.module_from_spec(found)
        sys.modules[path.stem] = module
        found.loader.exec_module(module)
    else:
        sys.path.insert(0, str(Path.cwd()))
        try:
            module = importlib.import_module(source)
        except ImportError as error:
            raise click.BadParameter(f"cannot import {source}: {error}", param_hint="MODULE") from error
    if not hasattr(module, name):
        raise click.BadParameter(f"{source} has no {name}", param_hint="MODULE")
    return getattr(module, name)


def _call(target: Callable[[], Any], name: str) -> Any:
    try:
        return target()
    except TypeError as error:
        raise click.UsageError(
            f"{name}() cannot be called without arguments ({error}): write a function without arguments that builds "
            "the model, in any file, and inspect that"
        ) from error


def _example(text: str) -> "torch.Tensor":
    import torch

    shape, _, dtype_name = text.partition(":")
    dtype = getattr(torch, dtype_name or "float32", None)
    if not isinstance(dtype, torch.dtype) or not all(part.strip().isdigit() for part in shape.split(",")):
        raise click.BadParameter(f"{text!r}: write a shape and optionally a dtype, 2,16,32 or 2,16:int64")
    sizes = [int(part) for part in shape.split(",")]
    if dtype.is_floating_point:
        return torch.zeros(sizes, dtype=dtype, requires_grad=True)
    return torch.zeros(sizes, dtype=dtype)
