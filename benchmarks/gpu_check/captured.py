"""Checks of a stage without a process group in other forms than one operation after the other.

compiled    stretches of computation compiled by Inductor, equal to eager graphs within the rounding of the type
captured    the whole plan as one CUDA graph, equal to the bit; on a CPU the plan itself stands in for it
runs        ``plan.captured()``: runs of computation as CUDA graphs call after call equal to the bit; on a CPU as above
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import annopipe as ap
from benchmarks.gpu_check.checklist import Checklist, Found
from benchmarks.kernels.measuring import difference
from benchmarks.pair.case import Case
from benchmarks.pair.stage import Pair, differing
from benchmarks.pair.timing import timed

__all__ = ["run"]

_LARGE = Case(blocks=2, batch=2, sequence=1024, hidden=1024, expert_hidden=512, experts=32, top_k=4)
_SMALL = Case(blocks=1, sequence=16, hidden=32, expert_hidden=32, experts=4, top_k=2)
_ROUNDS = 7
_TOLERANCE = {"cuda": 5e-2, "cpu": 1e-4}  # in bfloat16, and in float32


def run(checks: Checklist, device: torch.device) -> None:
    """All checks of this group."""
    case = _LARGE if device.type == "cuda" else _SMALL
    checks.check("captured", functools.partial(_captured_is_equal, case, device))
    checks.check("runs", functools.partial(_runs_equal, _SMALL, device))
    if device.type == "cuda":
        checks.check("runs, large", functools.partial(_runs_equal, _LARGE, device))
    checks.check("compiled", functools.partial(_compiled_is_close, device))


def _compiled_is_close(device: torch.device) -> Found:
    """The forward of one block, or of a few operations on a CPU, for which the compiler takes long."""
    if device.type == "cuda":
        pair = Pair(dataclasses.replace(_LARGE, blocks=1, graph="forward"), None, device)
        graph, values = pair.both, pair.values
    else:
        module, x = _Gated(), torch.randn(16, 32, device=device)
        graphs = ap.trace(module, (x,))
        graph, values = graphs.forward, graphs.bind_inputs(x)
    plan = ap.overlap(graph, policy="sequential")
    compiled = plan.compiled()
    expected, found = plan.run(values), compiled.run(values)
    names = [name for name, v in expected.items() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    worst = max(difference(found[name], expected[name]) for name in names)
    seconds = {
        "eager graphs": _seconds(lambda: plan.run(values), device),
        "compiled": _seconds(lambda: compiled.run(values), device),
    }
    report = str(compiled.compile_report).partition("\n")[0]
    wrong: list[str] = []
    if device.type == "cuda":
        both = compiled.captured()
        for _ in range(2):  # recorded, then replayed
            wrong = wrong or differing(both.run(values), found)
        seconds["compiled and captured"] = _seconds(lambda: both.run(values), device)
    detail = f"{report}; {len(names)} values at most {worst:.1e} apart; {_told(seconds)}"
    detail += f"; captured, differing: {', '.join(wrong)}" if wrong else ""
    return Found(worst < _TOLERANCE[device.type] and not wrong, detail, {"seconds": seconds, "worst": worst})


class _Gated(nn.Module):
    """Elementwise operations, which a compiler makes one of."""

    def forward(self, x: Tensor) -> Tensor:
        with ap.region("gate"):
            return torch.tanh(x * x.sigmoid() + 1)


def _captured_is_equal(case: Case, device: torch.device) -> Found:
    """A backward and a forward; with new values in the same memory, too."""
    pair = Pair(case, None, device)
    plan = ap.overlap(pair.both, policy="sequential")
    values = dict(pair.values)
    replay = _captured(plan, values, device)
    wrong = differing(replay(), plan.run(values))
    changed = values["F.input.x"]
    changed.copy_(torch.randn(changed.shape, generator=torch.Generator().manual_seed(1)).to(changed))
    wrong += differing(replay(), plan.run(values))
    seconds = {
        "operation by operation": _seconds(lambda: plan.run(values), device),
        "captured": _seconds(replay, device),
    }
    detail = f"{len(plan.order)} nodes, differing: {', '.join(wrong) or 'none'}; {_told(seconds)}"
    return Found(not wrong, detail, {"seconds": seconds})


def _runs_equal(case: Case, device: torch.device) -> Found:
    """Three calls, each with other values at other addresses; later calls change no result of an earlier one."""
    pair = Pair(case, None, device)
    plan = ap.overlap(pair.both, policy="sequential")
    captured = plan.captured() if device.type == "cuda" else plan
    calls, wrong = [], list[str]()
    for number in range(3):
        values = {name: _moved(name, value, number) for name, value in pair.values.items()}
        calls.append((captured.run(values), plan.run(values)))
        for found, expected in calls:
            wrong += differing(found, expected)
    seconds = {
        "operation by operation": _seconds(lambda: plan.run(pair.values), device),
        "runs captured": _seconds(lambda: captured.run(pair.values), device),
    }
    report = "the plan itself" if captured is plan else str(captured.capture_report).partition("\n")[0]
    detail = f"{report}; differing: {', '.join(sorted(set(wrong))) or 'none'}; {_told(seconds)}"
    return Found(not wrong, detail, {"seconds": seconds})


def _moved(name: str, value: Any, number: int) -> Any:
    """Another tensor with other values, where that is no parameter and holds no sizes."""
    stays = ".param." in name or ".buffer." in name
    moves = isinstance(value, Tensor) and value.is_floating_point() and not stays
    return value * (1 + number / 64) if moves else value


def _captured(plan: ap.OverlapPlan, values: Mapping[str, Any], device: torch.device) -> Callable[[], dict[str, Any]]:
    """The plan as something to replay; results are in the same memory each time."""
    if device.type != "cuda":
        return lambda: plan.run(values)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm: kernels are compiled, tiles chosen, memory of the libraries allocated
        for _ in range(3):
            plan.run(values)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = plan.run(values)

    def replay() -> dict[str, Any]:
        graph.replay()
        return result

    return replay


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    run()
    return statistics.median(timed(run, device) for _ in range(_ROUNDS))


def _told(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in seconds.items())
