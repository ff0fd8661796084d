"""The page that shows every named schedule, from what the library knows about it."""

from pathlib import Path

import annopipe as ap
from annopipe.scheduling.library import Entry, entry
from annopipe.scheduling.shares import shared_out
from annopipe.scheduling.spec import ScheduleSpec
from annopipe.simulation import ScheduleTimeline
from tools.pictures import save_picture

__all__ = ["RANKS", "gallery", "picture_name", "save_pictures", "simulated"]

RANKS, MICROBATCHES = 4, 8
_HEAD = """\
# Gallery of schedules

<!-- Made by `make docs` from annopipe/scheduling/library: edit that. -->

Every schedule of `ap.schedule(name, ranks=..., microbatches=...)`, on {ranks} ranks with {microbatches} microbatches.
For one rank's share of the model F, I and W take 1 each and B takes 2 (with v stages a rank, a stage takes 1/v of it);
a combination takes F + B, so what combining saves is not seen here; messages take no time. Peak memory counts
microbatches that a rank keeps for its share of the model. The bubble is the share of rank-time in which nobody works,
the window the longest time from the first to the last action of a rank. `annopipe schedule show NAME` draws each with
your numbers and costs, shared out in the same way; [schedules.md](schedules.md) is the guide.

In formulas p is the number of ranks, m of microbatches, v of stages a rank, and r a rank; bubbles are idle times of a
rank, and times those of its share of the model, where nothing else is said.
"""


def gallery() -> str:
    """The page as Markdown."""
    timelines = {name: simulated(name) for name in ap.schedules()}
    head = _HEAD.format(ranks=RANKS, microbatches=MICROBATCHES)
    return "\n".join([head, *_table(timelines), *(line for name in timelines for line in _chapter(name))])


def save_pictures(folder: Path) -> None:
    """Write the picture of every schedule."""
    for name in ap.schedules():
        title = f"{RANKS} ranks, {MICROBATCHES} microbatches; F = I = W = 1 for a rank's share of the model"
        save_picture(simulated(name), folder / picture_name(name), title)


def picture_name(name: str) -> str:
    """The file of a schedule's picture."""
    return f"{name}.png"


def simulated(name: str) -> ScheduleTimeline:
    """A named schedule with the same work on every rank, however many stages that has."""
    costs = shared_out(ap.costs.table(), _spec(name).placement)
    return ap.schedule(name, ranks=RANKS, microbatches=MICROBATCHES, costs=costs).simulated(costs)


def _spec(name: str) -> ScheduleSpec:
    return ap.schedule_spec(name, ranks=RANKS, microbatches=MICROBATCHES)


def _chunks(spec: ScheduleSpec) -> int:
    return max(spec.placement.chunk_of) + 1


def _table(timelines: dict[str, ScheduleTimeline]) -> list[str]:
    lines = ["| schedule | makespan | window | bubble | peak memory | messages |", "|---|---|---|---|---|---|"]
    for name, found in timelines.items():
        numbers = f"{found.makespan:g} | {found.window:g} | {found.bubble:.1%} | {found.peak_memory:g}"
        lines.append(f"| [{name}](#{name}) | {numbers} | {found.message_count} |")
    return lines


def _chapter(name: str) -> list[str]:
    known, spec = entry(name), _spec(name)
    return [
        "",
        f"## {name}",
        "",
        known.summary,
        "",
        f"![{name} on {RANKS} ranks]({'images/' + picture_name(name)})",
        "",
        *_facts(known, spec),
        "",
        "```text",
        *_rules(spec),
        "```",
    ]


def _facts(known: Entry, spec: ScheduleSpec) -> list[str]:
    """What is known, one line of a list each."""
    shown = spec.placement
    copies = ", two copies of the parameters" if shown.copies > 1 else ""
    facts = [
        ("what for", known.use),
        ("bubble", known.bubble or "no simple form"),
        ("peak", known.peak or "no simple form"),
        ("placement", f"{shown.name}, {_counted(_chunks(spec), 'stage')} a rank{copies}"),
        ("options", ", ".join(f"`{option}`, default {_said(default)}" for option, default in known.options)),
        ("source", known.source),
        ("also called", ", ".join(f"`{alias}`" for alias in known.aliases)),
    ]
    return [f"- {what}: {said}" for what, said in facts if said]


def _said(default: object) -> str:
    """A default as a reader knows it; the one without a value is that of towers."""
    return "two towers of about equal length, on all ranks but the last" if default is None else str(default)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _rules(spec: ScheduleSpec) -> list[str]:
    """The fields that differ from their defaults, one a line; of rules always the priority."""
    default = ScheduleSpec(spec.placement, spec.microbatches)
    lines: list[str] = []
    for field in type(spec).__dataclass_fields__:
        value = getattr(spec, field)
        shown = value != getattr(default, field) or (field == "priority" and not spec.phases)
        if field in ("placement", "microbatches", "name", "costs") or not shown:
            continue
        if field == "phases":
            lines += ["phases=(", *(f'    "{phase}",' for phase in value), ")"]
        else:
            lines.append(f"{field}={value!r}".replace("'", '"'))
    return lines
