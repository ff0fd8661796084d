"""Options that several schedule commands share: how many of what, costs, and the width of what is printed."""

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from annopipe.cli.schedule.costs import read_costs

__all__ = ["Counts", "costs_option", "counts_options", "json_option", "subject_argument", "width_of_terminal"]

Command = TypeVar("Command", bound=Callable[..., Any])
PLACEMENTS = ("linear", "looped", "v", "wave", "bidirectional", "towers")
_RANKS, _MICROBATCHES = 4, 8


@dataclass(frozen=True)
class Counts:
    """How many ranks, microbatches and so on a command line asks for; None where it does not say.

    Attributes:
        ranks, microbatches: how many.
        chunks: stages a rank.
        towers: ranks of each tower.
        placement: which rank holds which stage of a file.
    """

    ranks: int | None = None
    microbatches: int | None = None
    chunks: int | None = None
    towers: tuple[int, ...] | None = None
    placement: str | None = None

    @property
    def of_names(self) -> tuple[int, int]:
        """Ranks and microbatches of a named schedule."""
        return self.ranks or _RANKS, self.microbatches or _MICROBATCHES

    @property
    def options(self) -> dict[str, Any]:
        """The options of a named schedule that are given."""
        given = {"chunks": self.chunks, "towers": self.towers}
        return {name: value for name, value in given.items() if value is not None}


def _sizes(_ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Whole numbers with commas between them."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{value}: write the ranks of each tower, as 2,1", param=param)
    return tuple(map(int, parts))


def counts_options(*, files: bool) -> Callable[[Command], Command]:
    """Options that become one argument `counts` of the command; `files`: with those for CSV files."""
    options = [
        click.option("--ranks", type=click.IntRange(1), metavar="N", help=f"Of named schedules; default {_RANKS}."),
        click.option(
            "--microbatches", type=click.IntRange(1), metavar="N", help=f"Of named schedules; default {_MICROBATCHES}."
        ),
        click.option("--chunks", type=click.IntRange(1), metavar="N", help="Stages a rank, where that is a choice."),
        click.option("--towers", callback=_sizes, metavar="N,N,...", help="Ranks of each tower, of distmm-pipe."),
    ]
    if files:
        options.append(
            click.option(
                "--placement",
                type=click.Choice(PLACEMENTS),
                help="Of a file's stages, when they are no chain or not as its rows say; with --chunks, --towers.",
            )
        )

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def packed(**given: Any) -> Any:
            names = [name for name in Counts.__dataclass_fields__ if name in given]
            return function(counts=Counts(**{name: given.pop(name) for name in names}), **given)

        decorated: Any = packed
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


costs_option = click.option(
    "--costs",
    callback=read_costs,
    metavar="COSTS",
    help="Arguments of ap.costs.table, as F=1,I=1,W=0.5,send=0.1 or F=[1,2]; or a TOML or JSON file with them.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
subject_argument = click.argument("subject", metavar="NAME|FILE.csv")


def width_of_terminal() -> int:
    """How many columns to print; 100 where nobody says."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)
