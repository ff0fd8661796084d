"""Where compilation is done and kept: folders that cannot be used, refusals, and what the caller has entered."""

import contextlib
import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from filelock import Timeout
from torch import Tensor, fx, nn

import annopipe as ap
from annopipe.compiling import building, inductor
from annopipe.compiling.forms import NotCompiled
from annopipe.errors import GraphError
from tests.graphs.helpers import same

COMPLEX = torch.complex(torch.randn(4, 8), torch.randn(4, 8))


class Smooth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).tanh() + 1


class Magnitude(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2).abs() + 1, (x.conj().imag * 3).tanh()


class Sparse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (torch.sparse.mm(torch.eye(4).to_sparse(), x) * 2).tanh() + 1


class Tenth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x / 10).tanh() + 1


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(inductor, "check_compiler", lambda: None)


def smooth() -> ap.StageGraph:
    return ap.trace(Smooth(), (torch.ones(4, 8),)).forward


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_cache_folder_that_is_none_is_an_error_that_names_it(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = smooth()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / below))
    with pytest.raises(GraphError, match=r"cannot be kept on disk: .*file.*environment variable TORCHINDUCTOR_CACHE"):
        ap.compile_graph(graph, helpers=0)


def test_a_disk_without_room_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(inductor, "compile_form", lambda _form, _version: list)
    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(GraphError, match="cannot be kept on disk: .*No space left on device; name a folder with room"):
        ap.compile_graph(smooth(), helpers=0)


def test_a_compiler_that_cannot_be_run_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", "/etc")

    monkeypatch.undo()
    monkeypatch.setattr(inductor, "get_cpp_compiler", forbidden)
    with pytest.raises(GraphError, match=r"takes a C\+\+ compiler, and there is none"):
        ap.compile_graph(smooth(), helpers=0)


def test_what_is_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "compile_form", lambda _form, _version: list)
    graph = smooth()
    compiled = ap.compile_graph(graph, helpers=0)
    assert compiled.source is graph
    assert ap.compile_graph(compiled) is compiled


def test_a_compiled_plan_has_the_times_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "compile_form", lambda _form, _version: list)
    plan = ap.overlap(smooth(), policy="sequential")
    compiled = plan.compiled(helpers=0)
    assert compiled.compiled().compile_report is compiled.compile_report
    assert ap.simulate(compiled).makespan == ap.simulate(plan).makespan > 0
    assert compiled.lower_bound == plan.lower_bound


@pytest.mark.parametrize("helpers", [-1, 1.5, "2", True])
def test_helpers_are_a_number_of_processes(helpers: Any) -> None:
    with pytest.raises(GraphError, match=f"helpers={helpers!r}: give a number of processes, 0 or more"):
        ap.compile_graph(smooth(), helpers=helpers)


def test_a_program_that_lacks_a_node_is_refused() -> None:
    with pytest.raises(GraphError, match="the program lacks node add: give the keys of all nodes"):
        ap.compile_graph(smooth(), ["mul", "tanh"])


def test_what_cannot_be_taken_from_a_damaged_cache_is_compiled_in_a_second_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path] = []

    def compile_form(_form: str, _version: str) -> Any:
        folders.append(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
        if len(folders) == 2:
            raise NotCompiled("ImportError: file too short")
        return list

    monkeypatch.setattr(inductor, "compile_form", compile_form)
    graph = smooth()
    # The first one compiles it and asks for it again, which fails as in a process that finds damaged files.
    assert len(ap.compile_graph(graph, helpers=0).report.compiled) == 1
    first = tmp_path / "inductor"
    assert folders == [first, first, first / "annopipe" / "again"]
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(first)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["*.py", "*.so"])
def test_empty_files_in_the_cache_do_no_harm(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    program = (
        "import torch, annopipe as ap\n"
        "graphs = ap.trace(torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Tanh()), (torch.ones(4, 8),))\n"
        "print(ap.compile_graph(graphs.forward, helpers=0).report)\n"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=False)
        if "takes a C++ compiler" in done.stderr:
            pytest.skip("no C++ compiler")
        assert done.stdout.startswith("1 stretch compiled")
        for path in tmp_path.rglob(kind):
            path.write_bytes(b"")


def test_what_is_refused_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def refuse(form: str, _version: str) -> NoReturn:
        tried.append(form)
        raise NotCompiled("made to fail")

    monkeypatch.setattr(inductor, "compile_form", refuse)
    assert ap.compile_graph(smooth(), helpers=0).report.reasons == {"made to fail": 3}
    assert len(tried) == 1


def test_nobody_waits_forever_for_a_process_that_compiles_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class Held:
        """The lock of a process that is suspended."""

        def __init__(self, path: str, timeout: float) -> None:
            self.path = path
            waited.append(timeout)

        def __enter__(self) -> NoReturn:
            raise Timeout(self.path)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(building, "FileLock", Held)
    monkeypatch.setattr(inductor, "compile_form", lambda _form, _version: list)
    assert len(ap.compile_graph(smooth(), helpers=0).report.compiled) == 1
    assert waited[0] == 0
    assert 0 < waited[1] <= 600


@pytest.mark.parametrize(
    ("module", "x", "said"),
    [(Magnitude(), COMPLEX, "complex64"), (Sparse(), COMPLEX.real, "sparse")],
)
def test_what_inductor_has_no_code_for_runs_eagerly(module: nn.Module, x: Tensor, said: str) -> None:
    graphs = ap.trace(module, (x,))
    compiled = ap.compile_graph(graphs.forward, helpers=0)
    assert any(said in reason for reason in compiled.report.reasons)
    found, expected = compiled(graphs.bind_inputs(x)), graphs.forward(graphs.bind_inputs(x))
    assert found.keys() == expected.keys()
    assert all(same(found[name], value) for name, value in expected.items())


class Rebuilt(Exception):  # noqa: N818 (it ends the compilation)
    """What would be compiled."""


@contextlib.contextmanager
def as_default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def given_to_inductor(monkeypatch: pytest.MonkeyPatch) -> list[list[torch.dtype]]:
    """The dtypes of what is compiled from now on; nothing is."""
    seen: list[list[torch.dtype]] = []

    def stop(module: fx.GraphModule, *_: Any, **__: Any) -> NoReturn:
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_inference_mode_enabled()
        seen.append([node.meta["val"].dtype for node in module.graph.nodes if node.op == "call_function"])
        raise Rebuilt

    monkeypatch.setattr(inductor, "standalone_compile", stop)
    return seen


def test_what_the_caller_has_entered_is_not_compiled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = given_to_inductor(monkeypatch)
    product = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Tanh())
    graph = ap.trace(product, (torch.ones(4, 8),)).forward
    for entered in (torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta")):
        with entered:
            ap.compile_graph(graph, helpers=0)
    assert [set(dtypes) for dtypes in seen] == [{torch.float32}] * 3


def test_default_dtypes_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = given_to_inductor(monkeypatch)
    graphs = {}
    for dtype in (torch.float32, torch.float64):
        with as_default(dtype):
            graphs[dtype] = ap.trace(Tenth(), (torch.arange(4),)).forward
            ap.compile_graph(graphs[dtype], helpers=0)
    assert [set(dtypes) for dtypes in seen] == [{torch.float32}, {torch.float64}]
    (reason,) = ap.compile_graph(graphs[torch.float64], helpers=0).report.reasons
    assert re.search("results were float64 when it was traced, and are float32 now", reason)
