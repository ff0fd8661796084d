"""The command line: one file per command, imported only when that command runs, so that --help answers at once."""

import sys
from typing import Any

import click

from annopipe.cli.lazy import LazyGroup
from annopipe.errors import AnnopipeError

__all__ = ["command", "main"]

_COMMANDS = {
    "bench": ("annopipe.cli.bench", "Measure on this machine."),
    "calibrate": ("annopipe.cli.calibrate", "Measure this machine, its links and a model's layers."),
    "doctor": ("annopipe.cli.doctor", "Say what this machine can run."),
    "inspect": ("annopipe.cli.inspect", "Trace a model and print its region table."),
    "report": ("annopipe.cli.report", "Show what a benchmark has written, or compare two runs."),
    "rewrite": ("annopipe.cli.rewrite", "Add, convert and take out tags in model source."),
    "schedule": ("annopipe.cli.schedule", "Show, check, compare and explain pipeline schedules."),
    "tune": ("annopipe.cli.tune", "Search for the best schedule of a workload."),
}


@click.group("annopipe", cls=LazyGroup, members=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="annopipe")
def command() -> None:
    """Tag regions of a model and have their communication hidden behind computation."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors that a user can cause are one message and exit code 2."""
    try:
        result: Any = command.main(arguments, standalone_mode=False)
    except click.exceptions.Abort:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except AnnopipeError as error:
        print(f"annopipe: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(result if isinstance(result, int) else 0)
