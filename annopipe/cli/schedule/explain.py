"""``annopipe schedule explain``: why a rank of a named schedule does what it does at a step."""

import json
import textwrap
from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from annopipe.cli.schedule.options import (
    Counts,
    Model,
    counts_options,
    json_option,
    model_options,
    refuse_costs_alone,
    width_of_terminal,
)
from annopipe.cli.schedule.progress import doing
from annopipe.cli.schedule.subjects import spec_of

if TYPE_CHECKING:
    from annopipe.scheduling.generation.explaining import Decision
    from annopipe.scheduling.programs import Programs

__all__ = ["command"]

_SHOWN = 3  # of what is ready, as many of each kind are printed
_EXAMPLES = """\b
Examples:
  annopipe schedule explain 1f1b --rank 1 --step 3
  annopipe schedule explain zb-h2 --ranks 8 --microbatches 16 --rank 0 --step 9
"""


@click.command("explain", epilog=_EXAMPLES)
@click.argument("name")
@counts_options(files=False)
@model_options
@click.option("--rank", type=click.IntRange(0), required=True, metavar="R", help="Which rank, from 0.")
@click.option("--step", type=click.IntRange(0), required=True, metavar="K", help="Its how-manieth action, from 0.")
@json_option
def command(name: str, counts: Counts, model: Model, rank: int, step: int, *, as_json: bool) -> None:
    """Say why a rank does what it does at a step: what was ready, how urgent it was, and why one action won.

    Schedules that are written in phases have an exact order: of those, the phase is named.
    """
    refuse_costs_alone(model)
    spec = spec_of(name, counts, model)
    with doing(f"building {name}"):
        decision = spec.explain(rank, step)
        programs = spec.build().programs
    if as_json:
        click.echo(json.dumps(asdict(decision), indent=1))
        return
    width = width_of_terminal()
    shown = _shortened(decision)
    for line in str(shown).splitlines():
        click.echo(textwrap.fill(line, width, subsequent_indent=" " * 6))
    if len(shown.candidates) < len(decision.candidates):
        click.echo(f"  and {len(decision.candidates) - len(shown.candidates)} more; --json prints all")
    if decision.candidates:
        order = ", ".join(spec.priority)
        legend = (
            f"urgency: the place of its kind in the priority {order}; turn: its place in the rank's order of that kind"
        )
        click.echo(textwrap.fill(legend, width))
    click.echo()
    click.echo(_surroundings(programs, rank, step, width))


def _shortened(decision: "Decision") -> "Decision":
    """The decision with the first candidates of each kind, and what was chosen."""
    from annopipe.scheduling.actions import Action

    action = Action.parse(decision.chosen)
    chosen = [str(part) for part in action.singles]
    counts: Counter[int] = Counter()
    kept = []
    for candidate in decision.candidates:
        counts[candidate.urgency] += 1
        if counts[candidate.urgency] <= _SHOWN or candidate.action in chosen:
            kept.append(candidate)
    return replace(decision, candidates=tuple(kept))


def _surroundings(programs: "Programs", rank: int, step: int, width: int) -> str:
    from annopipe.scheduling.grid import grid

    last = len(programs.ranks) - 1
    longest = max(len(programs.numbering.text(number)) for program in programs.ranks for number in program)
    cell = 3 + max(longest, len(f"step {max(map(len, programs.ranks)) - 1}"))
    margin = len(f"-> rank {last}   ... ") + len("...")
    return grid(programs, [(rank, step)], columns=max(1, (width - margin) // cell))
