"""The results of `annopipe bench moe`, checked once: all that draws and writes gets these, and no plain data.

Keys that are not known are passed over: a benchmark may write more than a page shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from annopipe.errors import AnnopipeError
from benchmarks.moe_page.claims import Headline, TalkLine, headlines_of, talk_line_of
from benchmarks.moe_page.fields import Field

__all__ = ["Bar", "Measured", "Predicted", "Results", "Row", "Setting", "Settings"]

_RUNTIMES = ("annopipe", "eager", "attached")
_KINDS = ("paced", "measured", "emulated")
_LANES = ("compute", "communication")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a clock said: the seconds of each round, communication exposed on a pipeline's ranks, peak bytes."""

    kind: str
    seconds: tuple[float, ...]
    exposed_s: float | None
    peak_bytes: int | None

    @property
    def median_s(self) -> float:
        """Of all rounds."""
        return median(self.seconds)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the simulator says, and the seconds below which no step can be."""

    seconds: float
    exposed_s: float | None
    peak_bytes: int | None
    bound_s: float | None


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that a rank does in a simulated step: lane is compute or communication."""

    rank: int
    lane: str
    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What rows share whose times may be compared."""

    config: str
    pp: int
    ep: int
    dp: int
    skew: float

    def __str__(self) -> str:
        return f"PP {self.pp} x EP {self.ep} x DP {self.dp}, routing skew {self.skew:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule on a runtime."""

    setting: Setting
    runtime: str
    schedule: str
    policy: str | None
    nano_batches: int
    compiled: bool
    measured: Measured | None
    predicted: Predicted | None
    why_missing: str
    timeline: tuple[Bar, ...] | None

    @property
    def step_s(self) -> float | None:
        """The measured step, or else the predicted one."""
        if self.measured:
            return self.measured.median_s
        return self.predicted.seconds if self.predicted else None

    @property
    def name(self) -> str:
        """What a line about the row begins with."""
        nano = f"{self.nano_batches} nano-batches" if self.nano_batches > 1 else ""
        parts = (f"{self.runtime} {self.schedule}", nano, "compiled" * self.compiled, self.policy or "")
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration is, by name, and which rows it would have had but for a reason."""

    values: Mapping[str, Any]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """A whole run.

    Attributes:
        settings: of each configuration, and what it leaves out, as far as the run says.
    """

    command: str
    interrupted: bool
    environment: Mapping[str, Any]
    settings: Mapping[str, "Settings"]
    rows: tuple[Row, ...]
    headlines: tuple[Headline, ...]
    talk: tuple[TalkLine, ...]

    @classmethod
    def of(cls, data: object) -> "Results":
        """The results that a benchmark gave, or read from its JSON.

        Raises AnnopipeError for results of another benchmark, and for damaged ones with the place that is wrong.
        """
        whole = Field(data, "")
        given = whole.mapping()
        if given.get("benchmark") != "moe":
            said = f"benchmark {given['benchmark']!r}" if "benchmark" in given else "no benchmark by name"
            raise AnnopipeError(
                f"these are results of {said}: a page is made of what `annopipe bench moe --json` wrote"
            )
        rows = tuple(_row(each) for each in whole["rows"].items())
        if not rows:
            raise AnnopipeError("the results have no rows: let `annopipe bench moe` finish at least one of them")
        environment = whole["environment"].table()
        command = given.get("command", environment.get("command"))
        return cls(
            "" if command is None else Field(command, "command").text(),
            "interrupted" in given and whole["interrupted"].flag(),
            {name: value for name, value in environment.items() if name != "command"},
            {name: _settings(each) for name, each in whole["configs"].fields().items()} if "configs" in given else {},
            rows,
            headlines_of(whole),
            tuple(talk_line_of(each) for each in whole["talk"].items()),
        )

    def configurations(self) -> dict[str, list[Row]]:
        """The rows of each configuration, in the order of the run."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.setting.config, []).append(row)
        return found


def _row(field: Field) -> Row:
    measured, predicted, timeline = (field[name].optional() for name in ("measured", "predicted", "timeline"))
    why, policy = field["why_missing"].optional(), field["policy"].optional()
    pp, ep, dp = (field[name].count() for name in ("pp", "ep", "dp"))
    return Row(
        Setting(field["config"].text(), pp, ep, dp, field["skew"].number()),
        field["runtime"].one_of(_RUNTIMES),
        field["schedule"].text(),
        None if policy is None else policy.text(),
        field["nano_batches"].count(),
        field["compile"].flag(),
        None if measured is None else _measured(measured),
        None if predicted is None else _predicted(predicted),
        "" if why is None else why.text(),
        None if timeline is None else tuple(_bar(each) for each in timeline.items()),
    )


def _measured(field: Field) -> Measured:
    seconds = tuple(each.number(above_zero=True) for each in field["seconds"].items())
    if not seconds:
        raise AnnopipeError(f"damaged results: {field.where}.seconds is empty; run `annopipe bench moe` again")
    exposed, peak = field["exposed_seconds"].optional(), field["peak_bytes"].optional()
    return Measured(
        field["kind"].one_of(_KINDS),
        seconds,
        None if exposed is None else exposed.number(),
        None if peak is None else int(peak.number()),
    )


def _predicted(field: Field) -> Predicted:
    exposed, peak, bound = (field[name].optional() for name in ("exposed_seconds", "peak_bytes", "bound_seconds"))
    return Predicted(
        field["seconds"].number(above_zero=True),
        None if exposed is None else exposed.number(),
        None if peak is None else int(peak.number()),
        None if bound is None else bound.number(),
    )


def _bar(field: Field) -> Bar:
    rank, lane, start, end, label = field.items(5)
    bar = Bar(rank.count(0), lane.one_of(_LANES), start.number(), end.number(), label.text())
    if bar.end_s < bar.start_s:
        raise AnnopipeError(f"damaged results: {field.where} ends before it starts; run `annopipe bench moe` again")
    return bar


def _settings(field: Field) -> Settings:
    given = field.table()
    left_out = tuple(each.text() for each in field["left_out"].items()) if "left_out" in given else ()
    return Settings({name: value for name, value in given.items() if name != "left_out"}, left_out)
