"""``annopipe schedule ...``: list, show, check, compare, export, explain and phases of pipeline schedules; no torch."""

import click

from annopipe.cli.lazy import LazyGroup

__all__ = ["command"]

_COMMANDS = {
    "check": ("annopipe.cli.schedule.check", "Say whether a schedule can be run and is a whole step."),
    "compare": ("annopipe.cli.schedule.compare", "Put schedules side by side: time, bubble, memory, messages."),
    "explain": ("annopipe.cli.schedule.explain", "Say why a rank does what it does at a step."),
    "export": ("annopipe.cli.schedule.export", "Write a schedule as CSV, in PyTorch's format."),
    "list": ("annopipe.cli.schedule.list", "List the schedules that have names."),
    "phases": ("annopipe.cli.schedule.phases", "Hidden and exposed communication of each phase of a step."),
    "show": ("annopipe.cli.schedule.show", "Draw a schedule: text, PNG, HTML, Perfetto."),
}


@click.group("schedule", cls=LazyGroup, members=_COMMANDS)
def command() -> None:
    """Pipeline schedules, by name or from CSV files: simulated, not measured; neither torch nor a GPU is needed."""
