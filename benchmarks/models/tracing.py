"""Trace a stage of DeepSeek-V3 671B (4 layers with experts, shared by 64 ranks) in a process of its own.

Prints seconds and the peak of the process's memory as JSON. What importing takes is not in the seconds.
"""

import json
import resource
import time
from dataclasses import asdict

import torch

import annopipe as ap
from annopipe.graphs.capture import without_memory
from annopipe.graphs.process_groups import absent_group
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from benchmarks.models.apart import Traced

__all__ = ["trace_here"]


def trace_here(layers: int = 4, experts_of: int = 64, tokens: int = 4096) -> Traced:
    """Build and trace the stage without memory; the peak is that of the whole process so far."""
    config = DeepSeekV3Config.v3_671b()
    started, used = time.perf_counter(), time.process_time()
    with absent_group(experts_of) as group:
        with without_memory():
            numbers = range(config.dense_layers, config.dense_layers + layers)
            stage = DeepSeekV3Stage(config, numbers, group, seed=None, dtype=torch.bfloat16)
            x = torch.empty(1, tokens, config.hidden, dtype=torch.bfloat16, requires_grad=True)
        graphs = ap.trace(stage, (x,))
    parts = [graph for graph in (graphs.forward, graphs.backward) if graph is not None]
    return Traced(
        time.perf_counter() - started,
        time.process_time() - used,
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        sum(len(graph.graph.nodes) for graph in parts),
    )


if __name__ == "__main__":
    found = trace_here()
    print(json.dumps(asdict(found)))
