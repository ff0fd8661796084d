"""Adapter to torch._inductor: from a form to a function that takes one list of values and empties it.

The one right way of calling: fake values with a ShapeEnv of their own, whose symbols are all unbacked, so that nothing
is assumed of a size (not even that it is neither 0 nor 1); ``example_value`` on the nodes, from which
standalone_compile takes that ShapeEnv; every symbol an input. Real example values would make sizes constants, and wrong
results without an error.

What is kept of the result is the innermost function. The layers that AOTAutograd puts around it serve autograd, views
and mutations of inputs, which stretches do not have, and cost 10 us a call.
"""

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor import standalone_compile
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.utils import clear_caches
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions

from annopipe.compiling.forms import Compiled, NotCompiled
from annopipe.compiling.rebuilding import graph_of
from annopipe.errors import GraphError

__all__ = [
    "check_compiler",
    "compile_form",
    "compiler_folder",
    "compiler_version",
    "second_folder",
]

# Rounding after every operation in bf16 and fp16, as eager does it: results do not depend on what is fused.
_SETTINGS = {"emulate_precision_casts": True}
_AUTOCAST = ("cpu", "cuda")  # devices


def compiler_folder() -> str:
    """Where Inductor keeps what it has compiled."""
    return cache_dir()


@contextlib.contextmanager
def second_folder() -> Iterator[None]:
    """With another folder for what is compiled, inside of the first, in which files are damaged."""
    folder = compiler_folder()
    clear_caches()  # of this process, which remember the damaged files
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "annopipe" / "again")
    try:
        yield
    finally:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder


def compiler_version() -> str:
    """What else than the form decides what is compiled."""
    modes = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    return f"{torch.__version__} {torch.version.git_version} {_SETTINGS} {modes}"


def check_compiler() -> None:
    """Raises GraphError when there is no C++ compiler."""
    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError) as error:
        raise GraphError(
            "compiling for CPUs takes a C++ compiler, and there is none: install g++ or clang++, or name one in the "
            "environment variable CXX"
        ) from error


@functools.lru_cache(maxsize=4096)
def compile_form(form: str, _version: str) -> Compiled:
    """Compile a form, or take what Inductor has on disk for it.

    Args:
        form: what to compile.
        _version: what ``compiler_version`` says now; another one is compiled anew.

    Raises NotCompiled.
    """
    found: list[Any] = []

    def record(module: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        compiled = compile_fx_inner(module, inputs, **options)
        results: Any = module.graph.output_node().args[0]
        found.append((compiled, len(inputs), len(results)))
        return compiled

    described = json.loads(form)
    with _alone(), functorch_config.patch(enable_autograd_cache=False):
        try:
            module, values = _rebuilt(form)
            _check_dtypes(module, described["dtypes"])
            options = {"inner_compile": record, "config_patches": _SETTINGS}
            standalone_compile(module, values, dynamic_shapes="from_graph", options=options)
        except Exception as error:  # whatever Inductor raises: the stretch runs eagerly, and the report has the text
            raise NotCompiled(_first_line(error)) from error
    expected = len(described["inputs"]), len(described["outputs"])
    if len(found) != 1 or found[0][1:] != expected:
        raise NotCompiled("it would not be called with its inputs alone")
    compiled: Compiled = found[0][0].current_callable
    return compiled


def _rebuilt(form: str) -> tuple[fx.GraphModule, list[Any]]:
    """A form as a graph with fake values."""
    described = json.loads(form)
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    with shapes.ignore_fresh_unbacked_symbols():
        symbols = [shapes.create_unbacked_symint() for _ in described["ranges"]]
    for symbol, (lower, upper) in zip(symbols, described["ranges"], strict=True):
        if lower is not None:
            torch._check(symbol >= lower)
        if upper is not None:
            torch._check(symbol <= upper)
    named = {f"s{number}": symbol.node.expr for number, symbol in enumerate(symbols)}

    def extent(text: int | str) -> Any:
        if isinstance(text, int):
            return text
        expression = sympy.sympify(text, locals={**vars(functions), **named})
        return shapes.create_symintnode(expression, hint=None)

    with mode:
        values = [_value(given, extent) for given in described["inputs"]]
    graph = graph_of(form)
    module = fx.GraphModule({}, graph)
    with mode, torch.no_grad():
        _Recording(module).run(*values)
    return module, values


def _value(given: Any, extent: Callable[[int | str], Any]) -> Any:
    if "number" in given:
        return extent(given["number"])
    shape, strides = ([extent(each) for each in given[key]] for key in ("shape", "strides"))
    return torch.empty_strided(shape, strides, dtype=getattr(torch, given["dtype"]), device=given["device"])


class _Recording(fx.Interpreter):
    """Puts values on nodes, where Inductor looks for them."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["val"] = n.meta["example_value"] = result
        return result


def _check_dtypes(module: fx.GraphModule, expected: list[str]) -> None:
    """Raises NotCompiled when results have other dtypes than they were traced with, as under another default dtype."""
    (results,) = module.graph.output_node().args
    found = [str(node.meta["val"].dtype).removeprefix("torch.") for node in results]  # type: ignore[union-attr]
    if found != expected:
        raise NotCompiled(f"its results were {', '.join(expected)} when it was traced, and are {', '.join(found)} now")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Without what the caller may have entered, all of which is in the graph already, and without autograd.

    Also without the warning that there is nothing to save, which nobody asked for.
    """
    logger = logging.getLogger("torch._inductor.standalone_compile")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(inductor_config.patch(fx_graph_cache=True))
            stack.enter_context(torch.inference_mode(mode=False))
            stack.enter_context(torch.no_grad())
            for device in filter(torch.is_autocast_enabled, _AUTOCAST):
                stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        logger.setLevel(before)


def _first_line(error: Exception) -> str:
    """The first line of an error, and the first error of the C++ compiler in it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    found = next((line for line in lines[1:] if "error: " in line), "")
    return f"{type(error).__name__}: {': '.join(filter(None, (lines[0], found)))}"
