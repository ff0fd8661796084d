"""Real models on 64 H100: tracing at full size, the talk's relative results, and what a better partition gains.

annopipe bench models
annopipe bench models --part talk
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import click
from tabulate import tabulate

from annopipe.costs.cluster import Cluster
from annopipe.costs.machines import machine
from annopipe.tuning.workload import Workload
from benchmarks.models.apart import Traced, trace_apart
from benchmarks.models.comparison import (
    PUBLISHED_PARTITION,
    PUBLISHED_TALK,
    Row,
    as_one_chain,
    compared,
)

__all__ = ["command"]

_CLUSTER = Cluster(64, machine("h100"), 80e9, "64 H100")
_ROOMY = 1e12  # bytes: schedules are compared by time; their peaks are in the table
_TALK = ("1f1b", "interleaved-1f1b", "zb-h1", "interleaved-zb", "zbv", "dualpipev", "dualpipe")
_DEFAULT = ("1f1b", "interleaved-1f1b")
_SETTINGS = ((8, 8), (4, 16))  # pipeline ranks, and ranks that share the experts
_VOCABULARIES = ("32k", "128k", "256k", "512k")


@click.command("models")
@click.option(
    "--part",
    "parts",
    type=click.Choice(["trace", "talk", "partition"]),
    multiple=True,
    help="Repeatable; all by default.",
)
@click.option("--effort", type=click.IntRange(1), default=300_000, show_default=True, help="Of each search.")
@click.option("--batch", type=click.IntRange(1), default=256, show_default=True, help="Sequences of one step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(parts: Sequence[str], *, effort: int, batch: int, as_json: bool) -> None:
    """Layers of real models, traced without memory and priced for 64 H100; schedules simulated on them."""
    made: dict[str, Callable[[], Any]] = {
        "trace": trace_apart,
        "talk": lambda: _talk(batch),
        "partition": lambda: _partition(batch, effort),
    }
    found = {part: made[part]() for part in (parts or list(made))}
    if as_json:
        click.echo(json.dumps({name: _plain(value) for name, value in found.items()}, indent=1))
        return
    for part, value in found.items():
        click.echo("\n".join(_TEXTS[part](value)) + "\n")


def _plain(value: Any) -> Any:
    return [asdict(row) for row in value] if isinstance(value, list) else asdict(value)


def _talk(batch: int) -> list[Row]:
    rows = []
    for ranks, expert in _SETTINGS:
        work = Workload.from_model(
            "deepseek-v3-16b", _CLUSTER, batch=batch, ranks=ranks, expert=expert, memory=_ROOMY, recompute=None
        )
        name = f"deepseek-v3-16b, PP {ranks}, EP {expert}"
        rows += compared(name, work, _TALK, effort=0)
    return rows


def _partition(batch: int, effort: int) -> list[Row]:
    rows = []
    for size in _VOCABULARIES:
        model = f"gpt-5b-{size}"
        work = Workload.from_model(model, _CLUSTER, batch=batch, sequence=2048, ranks=8, recompute=None)
        rows += compared(f"{model}, PP 8", work, _DEFAULT, effort=effort)
    towers = Workload.from_model(
        "two-tower-bigg14", _CLUSTER, batch=32 * batch, ranks=8, microbatch_size=32, recompute=None
    )
    # The contrastive loss of each microbatch alone: else 1F1B has no meaning.
    towers = replace(towers, batch_wide=False)
    return rows + compared("two-tower-bigg14, PP 8", towers, _DEFAULT, base=as_one_chain(towers), effort=effort)


def _trace_text(found: Traced) -> list[str]:
    took = f"{found.seconds:.1f} s ({found.processor_s:.1f} s of the processor)"
    return [
        "DeepSeek-V3 671B, 4 layers with experts, EP 64, 4096 tokens; measured in a process of its own:",
        f"  {took}, peak {found.peak_bytes / 2**30:.2f} GiB, {found.nodes} nodes; demanded: 15 s, 1 GiB",
    ]


def _table(rows: Sequence[Row]) -> list[str]:
    account = [field for field in rows[0].account if any(row.account[field] for row in rows)]
    heads = ("workload", "schedule", "step ms", "gain", "bubble", "peak GB", *(f"{part} ms" for part in account))
    lines = [
        (
            row.workload,
            row.schedule,
            f"{1e3 * row.step:.1f}",
            f"{row.gain:.3f}",
            f"{row.bubble:.1%}",
            f"{row.peak_bytes / 1e9:.0f}",
            *(f"{1e3 * row.account[part]:.1f}" for part in account),
        )
        for row in rows
    ]
    return tabulate(lines, heads, disable_numparse=True).splitlines()


def _talk_text(rows: Sequence[Row]) -> list[str]:
    published = ", ".join(f"{name} {ratio:.2f}" for name, ratio in PUBLISHED_TALK.items())
    return [
        "DeepSeek-style model on 64 H100, simulated; gain over 1F1B, even stages; the account is a mean over ranks:",
        *_table(rows),
        f"published, over 1F1B: {published}",
    ]


def _partition_text(rows: Sequence[Row]) -> list[str]:
    return [
        "Big vocabularies and two towers on 64 H100, simulated; gain over 1F1B with the default partition:",
        *_table(rows),
        f"published, over Megatron-LM: up to {PUBLISHED_PARTITION:.2f}",
    ]


_TEXTS: dict[str, Callable[[Any], list[str]]] = {
    "trace": _trace_text,
    "talk": _talk_text,
    "partition": _partition_text,
}
