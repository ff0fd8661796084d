"""Roofline costs of DeepSeek-V3 layers beside the kernel times that were published for them.

    annopipe bench roofline

Four layers of the published sizes, expert parallelism over 64 ranks, 4096 tokens, traced without memory on a fake
process group and costed as an H800. Two columns: the graph as it is (bfloat16, one kernel per operation, no merging of
rows), and with what the published run did that ``ap.costs.roofline`` has a parameter for:

    FP8 products            matmul_dtype=torch.float8_e4m3fn          arXiv 2412.19437, section 3.3
    FP8 dispatch            wire_bytes: dispatch forward and combine backward 1 byte per value and a float32 scale for
                            128 of them; combine forward and dispatch backward stay bfloat16      section 3.3.3
    4 nodes per token       node_limit=NodeLimit(copies=8, nodes=4)   section 3.2.2
    fused kernels           fused=True
    20 of 132 SMs           Hardware.compute_share, held by communication                         section 3.2.2

Published: the mean of four layers of the training profile (github.com/deepseek-ai/profile-data), kernel time on the
device while forward and backward overlap. Where a component is off by more than 2x the command prints the account.

Components: mlp is the routed and shared experts; dispatch and combine are their transfers of rows; everything else
(attention, norms, router, the gather before dispatch, the weighted sum after combine) is attn.
"""

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from tabulate import tabulate

import annopipe as ap
from annopipe.costs import Hardware, NodeLimit
from annopipe.graphs.capture import without_memory
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage

__all__ = ["PUBLISHED_US", "command", "compare", "trace_layers"]

RANKS = 64
# Kernel time in microseconds of each of the four layers, streams added up.
PUBLISHED_US: Mapping[str, tuple[int, ...]] = {
    "attn(F)": (4306, 4258, 4433, 4454),
    "attn(B)": (9018, 9368, 9452, 9525),
    "attn(W)": (2375, 2382, 2392, 2405),
    "mlp(F)": (4250, 4384, 5175, 4606),
    "mlp(B)": (5693, 5408, 5407, 4716),
    "mlp(W)": (6420, 6023, 7272, 5798),
    "dispatch(F)": (6059, 5706, 7077, 7919),
    "dispatch(B)": (7302, 7909, 7271, 7465),
    "combine(F)": (7325, 8260, 9521, 9630),
    "combine(B)": (4380, 5224, 6207, 7266),
}
_LINK = (
    "alone, the same exchange is published at 50 to 51 GB/s per rank (DeepEP, docs/legacy.md, EP 64, 4096 tokens): 2.4 "
    "ms in FP8 and 4.7 ms in BF16 if the rows for a rank's own node count, like this roofline. In the profile it "
    "runs on 20 SMs beside computation, and takes longer from layer to layer although all layers are alike; we infer "
    "that its time includes waiting for other ranks and for memory bandwidth"
)
_REQUANTISED = (
    "FP8 weight gradients first dequantise, transpose and requantise their operands through memory (section 3.5.2) and "
    "are added to float32 gradients (section 3.3.1): the traced graph does neither"
)
_PRODUCTS = (
    "the traced graph has no quantisation of activations, and FP8 products that promote partial sums to float32 on "
    "CUDA cores every 128 values (section 3.3.2) attain less than the assumed fraction of the peak"
)
ACCOUNTS: Mapping[str, str] = {
    "attn(F)": _PRODUCTS,
    "attn(B)": "the published backward recomputes norms and the up-projections of latent attention (section 3.2.3), "
    "which the traced graph saves",
    "attn(W)": _REQUANTISED,
    "mlp(F)": _PRODUCTS,
    "mlp(B)": _PRODUCTS,
    "mlp(W)": f"part of it runs on a second stream, so that 6.4 ms of kernels span 5.1 ms; {_REQUANTISED}",
    **dict.fromkeys(("dispatch(F)", "dispatch(B)", "combine(F)", "combine(B)"), _LINK),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One component: milliseconds per layer, published, as traced and as the published run was set up."""

    component: str
    published_ms: float
    traced_ms: float
    as_run_ms: float

    @property
    def traced_ratio(self) -> float:
        """Roofline over published: above 1 the roofline is slower."""
        return self.traced_ms / self.published_ms

    @property
    def as_run_ratio(self) -> float:
        """The same with the published run's settings."""
        return self.as_run_ms / self.published_ms

    @property
    def account(self) -> str:
        """Why the roofline is off by more than 2x, "" where it is not."""
        return "" if 0.5 <= self.as_run_ratio <= 2.0 else ACCOUNTS[self.component]


def trace_layers(layers: int, tokens: int, config: DeepSeekV3Config | None = None) -> ap.StageGraphs:
    """The graphs of some layers with experts, traced without memory; the default process group has to exist."""
    config = config or DeepSeekV3Config.v3_671b()
    numbers = range(config.dense_layers, config.dense_layers + layers)
    with without_memory():
        stage = DeepSeekV3Stage(config, numbers, dist.group.WORLD, seed=None, dtype=torch.bfloat16)
        x = torch.empty(1, tokens, config.hidden, dtype=torch.bfloat16, requires_grad=True)
    return ap.trace(stage, (x,))


def compare(graphs: ap.StageGraphs, layers: int, machine: Hardware) -> list[Row]:
    """Every component, published and by roofline."""
    fp8 = 1 + 4 / 128
    as_run: dict[str, Any] = {
        "matmul_dtype": torch.float8_e4m3fn,
        "wire_bytes": {"dispatch": {"forward": fp8}, "combine": {"backward": fp8}},
        "node_limit": NodeLimit(copies=8, nodes=4),
        "fused": True,
    }
    shared = dataclasses.replace(machine, compute_share=112 / 132)
    traced, run = _components(graphs, machine, {}), _components(graphs, shared, as_run)
    return [
        Row(name, statistics.mean(times) / 1e3, traced[name] / layers * 1e3, run[name] / layers * 1e3)
        for name, times in PUBLISHED_US.items()
    ]


def _components(graphs: ap.StageGraphs, machine: Hardware, options: Mapping[str, Any]) -> Mapping[str, float]:
    """Seconds by component, all layers together."""
    total: defaultdict[str, float] = defaultdict(float)
    for graph in (graphs.forward, graphs.backward):
        if graph is None:
            continue
        seconds = ap.costs.roofline(graph, machine, **options).seconds
        for row in ap.region_table(graph):
            phase = {"forward": "F", "weight_grad": "W"}.get(row.phase, "B")
            total[f"{_part(row.region, row.kind)}({phase})"] += seconds[row.node.name]
    return total


def _part(region: str, kind: str) -> str:
    name = region.rpartition("/")[2]
    if name in ("dispatch", "combine"):
        return name if kind == "launch" else "attn"
    return "mlp" if name in ("experts", "shared") else "attn"


@click.command("roofline")
@click.option("--hardware", default="h800", show_default=True, help="A name that ap.costs.machine knows.")
@click.option("--tokens", type=click.IntRange(1), default=4096, show_default=True, help="Tokens per rank.")
@click.option("--layers", type=click.IntRange(1, 8), default=4, show_default=True, help="Layers to trace.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows there.")
def command(hardware: str, tokens: int, layers: int, json_path: Path | None) -> None:
    """Compare roofline costs of DeepSeek-V3 layers with their published kernel times (half a minute, no GPU)."""
    machine = ap.costs.machine(hardware)
    click.echo(f"tracing {layers} layers without memory, then computing their costs: about half a minute", err=True)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=dist.HashStore())
    try:
        rows = compare(trace_layers(layers, tokens), layers, machine)
    finally:
        dist.destroy_process_group()
    table = [(r.component, r.published_ms, r.traced_ms, r.traced_ratio, r.as_run_ms, r.as_run_ratio) for r in rows]
    click.echo(f"DeepSeek-V3, {tokens} tokens per rank, expert parallelism over {RANKS}: ms per layer, {machine.name}")
    click.echo("published: profile-data (H800, 4096 tokens); roofline: computed, not measured")
    headers = ("component", "published", "as traced", "ratio", "as published run", "ratio")
    click.echo(tabulate(table, headers=headers, floatfmt=".2f"))
    accounts = {row.account: [r for r in rows if r.account == row.account] for row in rows if row.account}
    for account, off in accounts.items():
        click.echo(f"\n{', '.join(f'{r.component} is {r.as_run_ratio:.2f}' for r in off)} of published: {account}.")
    if json_path is not None:
        described = [{**dataclasses.asdict(row), "account": row.account} for row in rows]
        content = {"hardware": machine.name, "tokens": tokens, "layers": layers, "ranks": RANKS, "rows": described}
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    command()
