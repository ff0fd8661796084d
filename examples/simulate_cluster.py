"""Simulate a cluster on a laptop: which schedule for a mixture of experts on 64 GPUs that are not there.

    python -m examples.simulate_cluster
    python -m examples.simulate_cluster --machine h800 --microbatches 32 --html out/cluster.html

Layers of a 16B DeepSeek-V3-style model are traced without memory on a process group that is not there. The roofline of
a datasheet gives every node its time, and the graphs, planned as the runtime would plan them, give every action its
own. Then a step is simulated under some schedules: 4 pipeline ranks, times 16 ranks that share the experts.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from annopipe.simulation.ranks.phases import phases

PIPELINE_RANKS, EXPERT_RANKS, LAYERS_A_RANK, SEQUENCES, LENGTH = 4, 16, 2, 8, 512
LINK_BYTES_PER_S, LATENCY_S = 50e9, 14e-6  # of messages between pipeline ranks: one network port a GPU
CONFIG = DeepSeekV3Config.v3_16b()


def costs_of(layers: int, machine: str) -> ap.ActionCosts:
    """What the actions of a stage of so many layers take, with experts on all ranks of the process group."""
    numbers = range(CONFIG.dense_layers, CONFIG.dense_layers + layers)
    stage = DeepSeekV3Stage(CONFIG, numbers, dist.group.WORLD, device="meta", dtype=torch.bfloat16)
    x = torch.empty(SEQUENCES, LENGTH, CONFIG.hidden, device="meta", dtype=torch.bfloat16, requires_grad=True)
    graphs = ap.trace(stage, (x,))
    return ap.costs.actions(
        graphs,
        lambda graph: ap.costs.roofline(graph, machine, fused=True),
        link_bytes_per_s=LINK_BYTES_PER_S,
        latency=LATENCY_S,
    )


def main() -> None:
    """Simulate, and print a line per schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="h100", help="a100, h100, h200, h800 or b200")
    parser.add_argument("--microbatches", type=int, default=16, help="of one step")
    parser.add_argument("--html", type=Path, help="write the timeline of the best schedule as a page for a browser")
    options = parser.parse_args()
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=EXPERT_RANKS)
    by_layers = {layers: costs_of(layers, options.machine) for layers in (LAYERS_A_RANK, LAYERS_A_RANK // 2)}
    found = {}
    print(f"{'schedule':<18}{'step ms':>9}{'bubble':>8}{'exposed ms':>12}{'GB kept':>9}    all simulated")
    for name in ("1f1b", "zb-h1", "interleaved-1f1b", "zbv", "dualpipev"):
        schedule = ap.schedule(name, ranks=PIPELINE_RANKS, microbatches=options.microbatches)
        layers = LAYERS_A_RANK * PIPELINE_RANKS // schedule.placement.stages
        found[name] = timeline = ap.simulate(schedule, by_layers[layers])
        inside = sum(phase.exposed for phase in phases(timeline)) / PIPELINE_RANKS
        row = f"{timeline.makespan * 1e3:>9.0f}{timeline.bubble:>8.1%}{inside * 1e3:>12.0f}"
        print(f"{name:<18}{row}{timeline.peak_memory / 1e9:>9.1f}")
    best = min(found, key=lambda name: found[name].makespan)
    if options.html:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        found[best].to_html(options.html)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
