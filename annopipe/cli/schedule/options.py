"""Options that several schedule commands share: how many of what, costs, and the width of what is printed."""

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

import annopipe as ap
from annopipe.cli.schedule.costs import read_costs

if TYPE_CHECKING:
    from annopipe.scheduling.action_costs import ActionCosts
    from annopipe.scheduling.placement import Placement

__all__ = [
    "Counts",
    "Model",
    "counts_options",
    "json_option",
    "model_options",
    "nano_option",
    "refuse_costs_alone",
    "subject_argument",
    "width_of_terminal",
]

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


@dataclass(frozen=True)
class Model:
    """What a command line says about the model's costs.

    Attributes:
        costs: of 1/p of the model, or of a stage; None where the command line does not say.
        per_stage: they are those of a stage.
        made_for_costs: the orders of named schedules are generated for them.
    """

    costs: "ActionCosts | None" = None
    per_stage: bool = False
    made_for_costs: bool = False

    def __post_init__(self) -> None:
        if self.made_for_costs and self.costs is None:
            raise click.UsageError("--made-for-costs: give the costs, with --costs")

    def of(self, placement: "Placement") -> "ActionCosts":
        """The costs of each stage; raises CostError when they do not fit the stages."""
        from annopipe.scheduling.shares import shared_out

        costs = self.costs or ap.costs.table()
        return costs if self.per_stage else shared_out(costs, placement)


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
        click.option(
            "--towers",
            callback=_sizes,
            metavar="N,N,...",
            help="Ranks of each tower, of distmm-pipe, which has one rank more than their sum; else about equal.",
        ),
    ]
    if files:
        options.append(
            click.option(
                "--placement",
                type=click.Choice(PLACEMENTS),
                help="Of a file's stages, when they are no chain or not as its rows say; with --chunks, --towers.",
            )
        )

    return _packed("counts", Counts, options)


def _packed(argument: str, kind: type[Counts | Model], options: list[Any]) -> Callable[[Command], Command]:
    """Add options whose values become one argument of the command."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def packed(**given: Any) -> Any:
            names = [name for name in kind.__dataclass_fields__ if name in given]
            value = kind(**{name: given.pop(name) for name in names})
            return function(**{argument: value}, **given)

        decorated: Any = packed
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


model_options = _packed(
    "model",
    Model,
    [
        click.option(
            "--costs",
            callback=read_costs,
            metavar="COSTS",
            help="Arguments of ap.costs.table, as F=1,I=1,W=0.5,send=0.1 or F=[1,2]; or a TOML or JSON file with them.",
        ),
        click.option("--per-stage", is_flag=True, help="Costs are those of a stage, however many a rank has."),
        click.option(
            "--made-for-costs",
            is_flag=True,
            help="Also generate named schedules for these costs; the order may be better than the usual one, or worse.",
        ),
    ],
)
nano_option = click.option(
    "--nano-batches",
    "nano_batches",
    type=click.IntRange(2),
    metavar="N",
    help="Run microbatches as N nano-batches where --costs lanes={'F/2'=0.7} says that it makes the step shorter.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
subject_argument = click.argument("subject", metavar="NAME|FILE.csv")


def refuse_costs_alone(model: Model) -> None:
    """For commands that need costs only to make the order; raises click.UsageError."""
    if (model.costs is not None or model.per_stage) and not model.made_for_costs:
        raise click.UsageError(
            "costs change nothing here unless the order is made for them: give --made-for-costs, too"
        )


def width_of_terminal() -> int:
    """How many columns to print; 100 where nobody says."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)
