"""``annopipe bench ...``: the benchmarks, each in its own file of the package ``benchmarks``.

A command whose benchmark imports torch is a file of this package, and imports the benchmark when it runs.
"""

import click

from annopipe.cli.lazy import LazyGroup

__all__ = ["command"]

_BENCHMARKS = {
    "calibration": ("benchmarks.calibration.command", "Predicted against paced: calibrate, search, run what is found."),
    "compile": ("benchmarks.compiling.command", "Compiled graphs beside eager ones, and the runner itself."),
    "kernels": ("annopipe.cli.kernels", "Our kernels: compiled for GPUs that are not here, timed on the one that is."),
    "models": ("benchmarks.models.command", "Real models on 64 H100: tracing, published gains beside simulated ones."),
    "moe": ("benchmarks.moe.command", "Whole MoE steps under pipeline schedules: paced, simulated, eager."),
    "overlap": ("benchmarks.overlap", "Hide an MoE pair's communication: eager, sequential and every policy."),
    "planning": ("annopipe.cli.planning", "Time multiplex, policy and reorder on a graph of 10,000 nodes."),
    "rewrite": ("benchmarks.rewriting", "Time the tagging of model source, and what of it is libcst's."),
    "roofline": ("annopipe.cli.roofline", "Roofline costs of DeepSeek-V3 layers beside their published kernel times."),
    "runtime": ("benchmarks.runtime.command", "Time the pipeline's runtime per action beside PyTorch's."),
    "schedules": ("benchmarks.schedules", "Build, lower, check and simulate schedules: actions per second."),
    "search": ("annopipe.cli.search", "Policy search beside proven optima, and on a large graph."),
    "tuning": ("benchmarks.tuning.command", "Search for schedules of a suite of workloads, beside the library's best."),
    "tuning-baselines": (
        "benchmarks.tuning.baselines",
        "The search beside repeating blocks and the zero-bubble heuristic.",
    ),
    "tuning-small": ("annopipe.cli.tuning_small", "Small instances of that suite beside their proven optima."),
}


@click.group("bench", cls=LazyGroup, members=_BENCHMARKS)
def command() -> None:
    """Measure on this machine; every table says whether its times are measured, paced, emulated or simulated."""
