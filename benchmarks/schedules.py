"""How long it takes to build, lower, check and simulate pipeline schedules; no torch.

annopipe bench schedules
annopipe bench schedules --schedule dualpipev --ranks 16 --microbatches 64
"""

import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

import click
from tabulate import tabulate

from annopipe.scheduling.action_costs import table
from annopipe.scheduling.library import schedule
from annopipe.scheduling.schedule_class import Schedule
from annopipe.simulation import simulate

__all__ = ["Measured", "command", "measure"]

Result = TypeVar("Result")
Seconds = dict[str, list[float]]  # by step, one number per round
# Two in which all ranks are busy, and a serial one, in which all but one wait.
_NAMES = ("1f1b", "zb-h1", "naive")
_COSTS = table(send=0.01, latency=0.1)


@dataclass(frozen=True)
class Measured:
    """One schedule: how many actions it has with messages, and the seconds of each step, one number per round.

    Attributes:
        both: check plus simulate.
    """

    name: str
    lowered_actions: int
    build: list[float]
    lower: list[float]
    check: list[float]
    simulate: list[float]
    both: list[float]

    @property
    def actions_per_second(self) -> float:
        """Lowered actions that are checked and simulated in a second, by the median."""
        return self.lowered_actions / statistics.median(self.both)


def measure(names: Sequence[str], ranks: int, microbatches: int, rounds: int) -> list[Measured]:
    """Time every step of every schedule, the schedules in alternation.

    Simulating includes the numbers of a table: makespan, bubble and peak memory.
    """
    times: dict[str, Seconds] = {name: {} for name in names}
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        for name in names:
            built = _timed(times[name], "build", partial(schedule, name, ranks, microbatches))
            lowered = _timed(times[name], "lower", built.lowered)
            _timed(times[name], "check", lowered.check)
            _timed(times[name], "simulate", partial(_numbers, lowered))
            sizes[name] = sum(map(len, lowered.programs.ranks))
    return [
        Measured(
            name, sizes[name], **steps, both=[a + b for a, b in zip(steps["check"], steps["simulate"], strict=True)]
        )
        for name, steps in times.items()
    ]


def _numbers(subject: Schedule) -> tuple[float, float, float]:
    timeline = simulate(subject, _COSTS)
    return timeline.makespan, timeline.bubble, timeline.peak_memory


def _timed(steps: Seconds, step: str, work: Callable[[], Result]) -> Result:
    gc.collect()
    started = time.perf_counter()
    result = work()
    steps.setdefault(step, []).append(time.perf_counter() - started)
    return result


@click.command("schedules")
@click.option("--schedule", "names", multiple=True, help=f"Repeatable; {', '.join(_NAMES)} by default.")
@click.option("--ranks", type=click.IntRange(1), default=64, show_default=True)
@click.option("--microbatches", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Repetitions, in alternation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(names: tuple[str, ...], ranks: int, microbatches: int, rounds: int, *, as_json: bool) -> None:
    """Time building, lowering, checking and simulating schedules (seconds, on one thread)."""
    found = measure(names or _NAMES, ranks, microbatches, rounds)
    if as_json:
        rows = [{**asdict(one), "actions_per_second": one.actions_per_second} for one in found]
        click.echo(json.dumps({"ranks": ranks, "microbatches": microbatches, "schedules": rows}, indent=1))
        return
    click.echo(f"{ranks} ranks, {microbatches} microbatches; seconds, median of {rounds}, measured")
    headers = ("schedule", "lowered actions", "build", "lower", "check", "simulate", "check + simulate", "spread")
    table_rows = [
        (
            one.name,
            f"{one.lowered_actions:,}",
            *(
                f"{statistics.median(getattr(one, step)):.3f}"
                for step in ("build", "lower", "check", "simulate", "both")
            ),
            f"{min(one.both):.3f}-{max(one.both):.3f}",
            f"{one.actions_per_second:,.0f}",
        )
        for one in found
    ]
    click.echo(tabulate(table_rows, headers=(*headers, "actions/s"), disable_numparse=True))
