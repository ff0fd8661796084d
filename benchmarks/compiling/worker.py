"""The compile job: ``python -m benchmarks.compiling.worker SETTINGS_JSON``; prints its result as a line "result:...".

With 0 rounds it only compiles.
"""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.compiling.graphs import compile_graphs
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from benchmarks.alternation import alternated, raise_priority
from benchmarks.compiling.overhead import runner_us
from benchmarks.launch import end_rank

__all__ = ["main"]

# Configuration, and the shape of a microbatch; two blocks with experts each.
_SIZES = {
    "tiny": (DeepSeekV3Config.tiny(), (2, 16)),
    "medium": (dataclasses.replace(DeepSeekV3Config.small(), layers=2, dense_layers=0), (2, 256)),
}
_WARMUP = 2
Values = dict[str, Any]
Step = Callable[[], Any]


def main() -> None:
    """Compile all graphs of each size, and time them."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    raise_priority(10)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {"graphs": [], "compilation": []}
    for size in settings["sizes"]:
        jobs = _jobs(size)
        started = time.perf_counter()
        compiled = compile_graphs([(graph, program) for graph, program, _ in jobs.values()])
        seconds = time.perf_counter() - started
        forms = {row.form for graph in compiled for row in graph.report.compiled}
        found["compilation"].append({"size": size, "distinct": len(forms), "seconds": seconds})
        if settings["rounds"]:
            for (name, (graph, _, values)), own in zip(jobs.items(), compiled, strict=True):
                row = _compared(graph, own, values, settings["rounds"])
                report = own.report
                counts = {"stretches": len(report.compiled), "distinct": report.distinct}
                found["graphs"].append({"size": size, "graph": name, **counts, **row})
    found["runner"] = runner_us() if settings["rounds"] else {}
    print("result:" + json.dumps(found), flush=True)
    end_rank()


def _jobs(size: str) -> dict[str, tuple[StageGraph, tuple[str, ...] | None, Values]]:
    """Each graph with the keys of its nodes in program order, where it is in another one, and values to run it on."""
    config, shape = _SIZES[size]
    torch.manual_seed(0)
    module = DeepSeekV3Stage(config, group=dist.group.WORLD)
    x = torch.randn(*shape, config.hidden, requires_grad=True)
    graphs = ap.trace(module, (x,))
    if graphs.backward is None:
        raise ap.PipelineError("the stage has no backward")
    forward_values = {**graphs.bind(module), **graphs.bind_inputs(torch.randn_like(x))}
    kept = {**forward_values, **graphs.forward(forward_values), "tangent.output": torch.randn_like(x)}
    plan = ap.overlap(ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F")), policy="dualpipe")
    both = {**ap.into_lane(kept, "B"), **ap.into_lane(forward_values, "F")}
    return {
        "forward": (graphs.forward, None, forward_values),
        "backward": (graphs.backward, None, kept),
        "both, dualpipe": (plan.graph, plan.program_order, both),
    }


def _compared(graph: StageGraph, compiled: StageGraph, values: Values, rounds: int) -> dict[str, Any]:
    """Processor seconds of both, and the largest difference of results over the largest value of each."""
    steps: dict[str, Step] = {"eager": lambda: graph(values), "compiled": lambda: compiled(values)}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number, name, spent in alternated(steps, rounds, warm_up=_WARMUP):
        if number >= 0:
            times[name].append(spent.processor_s)
    return {
        "nodes": len(body(graph.graph)),
        "error": _error(compiled(values), graph(values)),
        **{f"{name}_s": statistics.median(own) for name, own in times.items()},
        "ratios": [ours / theirs for ours, theirs in zip(times["compiled"], times["eager"], strict=True)],
    }


def _error(found: Values, expected: Values) -> float:
    pairs = [(found[k], v) for k, v in expected.items() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in pairs if b.numel())


if __name__ == "__main__":
    main()
