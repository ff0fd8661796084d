"""Load the model that a command line names, and make example inputs for it; failures name the user's line."""

import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from annopipe.errors import AnnopipeError

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["load_model"]


def load_model(spec: str, inputs: tuple[str, ...]) -> "tuple[nn.Module, tuple[Any, ...], dict[str, Any]]":
    """The model, its example arguments and its example keyword arguments.

    Args:
        spec: package.module:name or path/to/file.py:name.
        inputs: example inputs as texts, for a name that is a module.

    Raises:
        click.UsageError: the name cannot be loaded or called; the message names the line of the user's code.
    """
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
        if not isinstance(error, Exception) or isinstance(error, (click.ClickException, AnnopipeError)):
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
