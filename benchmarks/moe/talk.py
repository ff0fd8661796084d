"""What the PyTorch team's talk reports, beside what a run has measured or simulated.

On 64 H100 with a DeepSeek-style model, whose sizes and degrees it does not give: compiled graphs over the eager runtime
+70% (DualPipe), +60% (zero bubble), +50% (interleaved 1F1B); graph passes alone over 1F1B +7% (zero bubble), +17%
(DualPipe, with communication of experts hidden).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.models.comparison import PUBLISHED_TALK
from benchmarks.moe.headline import median_s, of_variant
from benchmarks.moe.variant import Variant, has_pairs

__all__ = ["OVER_1F1B", "OVER_EAGER", "talk_rows"]

OVER_EAGER = (
    ("DualPipe", "dualpipev", 1.7),
    ("zero bubble", "zbv", 1.6),
    ("interleaved 1F1B", "interleaved-1f1b", 1.5),
)
OVER_1F1B = (("zero bubble", ("zb-h1", "zbv")), ("DualPipe", ("dualpipev",)))
Rows = Sequence[Mapping[str, Any]]
TalkRow = tuple[str, float, float, str]


def talk_rows(rows: Rows, configs: Mapping[str, Mapping[str, Any]]) -> list[TalkRow]:
    """Name, published gain, gain found, and how it was found; for each configuration that has the rows for it."""
    return [
        *(row for name, about in configs.items() for row in _over_eager(rows, name, about)),
        *(row for name, about in configs.items() for row in _over_1f1b(rows, name, about)),
    ]


def _over_eager(rows: Rows, config: str, about: Mapping[str, Any]) -> Iterator[TalkRow]:
    """Our graphs over the eager runtime; compiled where the model computes, or is priced as if it did."""
    compiled = about["kind"] != "paced"
    what = {
        "paced": "the runtime and overlap, not compiled",
        "real": "one pipeline rank, compiled for a processor",
        "simulated": "fused and ordered over kernels that are not fused",
    }[about["kind"]]
    for title, schedule, published in OVER_EAGER:
        if found := _gain(rows, config, Variant("eager", schedule), _ours(schedule, compiled=compiled)):
            gain, how = found
            yield f"graphs over eager, {title}", published, gain, f"{config}, {how}: {schedule}, {what}"


def _over_1f1b(rows: Rows, config: str, about: Mapping[str, Any]) -> Iterator[TalkRow]:
    """Schedules over 1F1B, both on our graphs; one pipeline rank has no bubble, and says nothing."""
    if about["kind"] == "real":
        return
    compiled = about["kind"] == "simulated"
    for title, schedules in OVER_1F1B:
        for schedule in schedules:
            if found := _gain(rows, config, _ours("1f1b", compiled=compiled), _ours(schedule, compiled=compiled)):
                gain, how = found
                yield f"passes over 1F1B, {title}", PUBLISHED_TALK[title], gain, f"{config}, {how}: {schedule}"


def _ours(schedule: str, *, compiled: bool) -> Variant:
    """With its pairs reordered, where it has some."""
    return Variant("annopipe", schedule, "auto" if has_pairs(schedule) else None, compiled=compiled)


def _gain(rows: Rows, config: str, slow: Variant, fast: Variant) -> tuple[float, str] | None:
    """The time of one over that of the other, and how both are known: measured, or else simulated."""
    found = [row for own in (slow, fast) if (row := of_variant(rows, config, own)) is not None]
    if len(found) < 2:
        return None
    if all(row["measured"] is not None for row in found):
        times = [row["measured"]["seconds"] for row in found]
        apart = min(times[0]) > max(times[1]) or min(times[1]) > max(times[0])
        kind = str(found[0]["measured"]["kind"])
        return median_s(found[0]) / median_s(found[1]), kind if apart else f"{kind}, within the spread of the rounds"
    if any(row["measured"] is not None or row["predicted"] is None for row in found):
        return None
    return found[0]["predicted"]["seconds"] / found[1]["predicted"]["seconds"], "simulated"
