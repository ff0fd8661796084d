"""``annopipe inspect MODULE``: trace a model and print its region table."""

import collections
import contextlib
import importlib
import importlib.util
import inspect
import json
import sys
import traceback
import types
from collections.abc import Iterator
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
    examples = tuple(_example(text) for text in inputs)
    if isinstance(target, nn.Module) or (isinstance(target, type) and issubclass(target, nn.Module)):
        if not inputs:
            raise click.UsageError(f"{name} is a module: give an example input for each argument, as --input 2,16,32")
        return (target if isinstance(target, nn.Module) else _call(target, name)), examples, {}
    made = _call(target, name)
    if isinstance(made, nn.Module) and inputs:
        return made, examples, {}
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module)):
        raise click.UsageError(
            f"{name}() returned {type(made).__name__}: return (module, args) or (module, args, kwargs)"
        )
    if inputs:
        raise click.UsageError(f"{name}() returns its own example arguments: leave --input out")
    return made[0], tuple(made[1]), dict(made[2]) if len(made) == 3 else {}


def _resolve(source: str, name: str) -> Any:
    with _told_at_the_users_line(f"cannot import {source}"):
        module = _import_file(Path(source)) if source.endswith(".py") else _import_package(source)
    if not hasattr(module, name):
        raise click.BadParameter(f"{source} has no {name}", param_hint="MODULE")
    return getattr(module, name)


def _import_package(source: str) -> types.ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(source)


def _import_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise click.BadParameter(f"no Python file {path}", param_hint="MODULE")
    name = f"inspected_{path.stem}"  # a name of its own: the file may be called like a module of the standard library
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise click.BadParameter(f"{path} cannot be loaded as a Python file", param_hint="MODULE")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    sys.path.append(str(path.resolve().parent))  # its neighbours can be imported
    found.loader.exec_module(module)
    return module


def _call(target: Any, name: str) -> Any:
    if not callable(target):
        raise click.UsageError(f"{name} is a {type(target).__name__}: name a module, or a function that builds one")
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        raise click.UsageError(
            f"{name}() cannot be called without arguments ({error}): write a function without arguments that builds "
            "the model, in any file, and inspect that"
        ) from error
    with _told_at_the_users_line(f"{name}() failed"):
        return target()


class _told_at_the_users_line(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a statement
    """Turn an exception of the user's code into one message with the line where it happened."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, (click.ClickException, ap.AnnopipeError)):
            return
        frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<")]
        where = f", at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
        raise click.UsageError(f"{self._what}: {type(error).__name__}: {error}{where}") from error


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
