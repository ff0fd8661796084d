"""Compile many forms: in parallel processes, each form once on a machine, and never again while Inductor's cache lasts.

What Inductor has compiled is in its cache on disk. Beside it stands a mark for every form; a form without a mark is
compiled by whoever locks it first: this process, its helpers, or another rank on the same machine. The others wait for
it and take the result from the cache.
"""

import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from annopipe.compiling.forms import Compiled, NotCompiled
from annopipe.errors import GraphError
from annopipe.processors import processors

__all__ = ["build", "fill", "helpers_for"]

_WORTH_A_PROCESS = 3  # forms; a process takes as long to start
_PATIENCE_S = 600.0  # with another process that compiles a form; it may be suspended


def build(forms: Iterable[str], helpers: int | None = None) -> dict[str, Compiled | str]:
    """The function of each form, or why there is none.

    Args:
        forms: what to compile.
        helpers: how many processes besides this one; None: one for each processor that no rank has for itself.

    Raises GraphError when there is no C++ compiler, or no place to keep what is compiled.
    """
    try:
        return _built(forms, helpers)
    except OSError as error:
        raise GraphError(
            f"what is compiled cannot be kept on disk: {error}; name a folder with room that can be written in the "
            "environment variable TORCHINDUCTOR_CACHE_DIR"
        ) from error


def _built(forms: Iterable[str], helpers: int | None) -> dict[str, Compiled | str]:
    distinct = list(dict.fromkeys(forms))
    if any('"device":"cpu"' in form for form in distinct):
        _inductor().check_compiler()
    missing = [form for form in distinct if not _mark(form).exists()]
    count = min(helpers_for(len(missing)) if helpers is None else helpers, max(0, len(missing) - 1))
    refused: dict[str, str] = {}
    with _helped(missing, count):
        for waits in (False, True):
            refused |= fill([form for form in missing if form not in refused], waits=waits)
    return {form: refused.get(form) or _compiled(form) for form in distinct}


def fill(forms: Sequence[str], *, waits: bool) -> dict[str, str]:
    """Compile what has no mark yet.

    Args:
        forms: what is wanted.
        waits: for those that another process compiles now; else they are left to it.

    Returns those that this process could not compile, and why.
    """
    refused = {}
    for form in forms:
        mark = _mark(form)
        mark.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(f"{mark}.lock", timeout=_PATIENCE_S if waits else 0):
                if mark.exists():
                    continue
                if isinstance(found := _compiled(form), str):
                    refused[form] = found
                else:
                    mark.touch()
        except Timeout:
            continue
    return refused


def helpers_for(forms: int) -> int:
    """How many processes are worth while for so many forms, with the processors that other ranks leave free.

    >>> helpers_for(1)
    0
    """
    if forms < _WORTH_A_PROCESS:
        return 0
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    own, whole = processors(), os.cpu_count() or 1
    free = own if own * ranks <= whole else own // ranks  # ranks that are bound to processors of their own, or share
    return max(0, min(free - 1, forms // 2))


def _compiled(form: str) -> Compiled | str:
    inductor = _inductor()
    try:
        compiled: Compiled = inductor.compile_form(form, inductor.compiler_version())
    except NotCompiled as error:
        if not _mark(form).exists():
            return str(error)
    else:
        return compiled
    # It has been compiled before: files of the cache are damaged, as by a full disk or a machine that lost its power.
    try:
        with inductor.second_folder():
            again: Compiled = inductor.compile_form(form, inductor.compiler_version())
    except NotCompiled as error:
        return str(error)
    return again


def _inductor() -> Any:
    """The adapter, only when it is wanted: it imports PyTorch's compiler, which takes seconds."""
    return importlib.import_module("annopipe.compiling.inductor")


def _mark(form: str) -> Path:
    name = hashlib.sha256(f"{_inductor().compiler_version()}\n{form}".encode()).hexdigest()
    return Path(_inductor().compiler_folder()) / "annopipe" / name


@contextmanager
def _helped(forms: Sequence[str], count: int) -> Iterator[None]:
    """With processes that compile from the end while this one does from the beginning."""
    job = {
        "forms": forms[::-1],
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="annopipe-") as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "annopipe.compiling.helper", str(path)]
        started = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(count)]
        try:
            yield
        finally:
            for process in started:  # all is compiled, or has failed: what they still do is of no use
                process.terminate()
                process.wait()
