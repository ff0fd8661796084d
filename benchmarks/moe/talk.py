"""What the PyTorch team's talk reports, beside what a run has measured or simulated.

On 64 H100 with a DeepSeek-style model, whose sizes and degrees it does not give: compiled graphs over the eager runtime
+70% (DualPipe), +60% (zero bubble), +50% (interleaved 1F1B); graph passes alone over 1F1B +7% (zero bubble), +17%
(DualPipe, with communication of experts hidden).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.moe.headline import median_s, of_variant
from benchmarks.moe.variant import Variant, has_pairs

__all__ = ["OVER_1F1B", "OVER_EAGER", "talk_rows"]

OVER_EAGER = (
    ("DualPipe", "dualpipev", 1.7),
    ("zero bubble", "zbv", 1.6),
    ("interleaved 1F1B", "interleaved-1f1b", 1.5),
)
OVER_1F1B = (("zero bubble", ("zb-h1", "zbv"), 1.07), ("DualPipe", ("dualpipev",), 1.17))
Rows = Sequence[Mapping[str, Any]]
TalkRow = tuple[str, float, float, str]


def talk_rows(rows: Rows, configs: Mapping[str, Mapping[str, Any]]) -> list[TalkRow]:
    """Name, published gain, gain found, and how it was found; for each configuration that has the rows for it."""
    return [
        *(row for name, about in configs.items() for row in _over_eager(rows, name, about)),
        *(row for name, about in configs.items() for row in _over_1f1b(rows, name, about)),
        *(row for name, about in configs.items() for row in _compiled(rows, name, about)),
    ]


def _over_eager(rows: Rows, config: str, about: Mapping[str, Any]) -> Iterator[TalkRow]:
    if about["kind"] == "real":
        return
    compiled = about["kind"] == "simulated"
    for title, schedule, published in OVER_EAGER:
        ours = Variant("annopipe", schedule, "auto" if has_pairs(schedule) else None, compiled=compiled)
        gain = _gain(rows, config, Variant("eager", schedule), ours)
        if gain is not None:
            how = (
                "fused and ordered by auto over unfused kernels"
                if compiled
                else "the runtime and overlap, not compiled"
            )
            yield f"graphs over eager, {title}", published, gain, f"{config}, {_how(about)}: {schedule}, {how}"


def _over_1f1b(rows: Rows, config: str, about: Mapping[str, Any]) -> Iterator[TalkRow]:
    if about["kind"] == "real":
        return
    compiled = about["kind"] == "simulated"
    for title, schedules, published in OVER_1F1B:
        for schedule in schedules:
            ours = Variant("annopipe", schedule, "auto" if has_pairs(schedule) else None, compiled=compiled)
            gain = _gain(rows, config, Variant("annopipe", "1f1b", compiled=compiled), ours)
            if gain is not None:
                yield f"passes over 1F1B, {title}", published, gain, f"{config}, {_how(about)}: {schedule}"


def _compiled(rows: Rows, config: str, about: Mapping[str, Any]) -> Iterator[TalkRow]:
    """Compiled graphs beside the eager runtime, where the model computes."""
    if about["kind"] != "real":
        return
    schedule = "dualpipev"
    ours = Variant("annopipe", schedule, "auto", compiled=True)
    gain = _gain(rows, config, Variant("eager", schedule), ours)
    if gain is not None:
        how = "one pipeline rank, compiled on a processor, ordered by auto"
        yield "graphs over eager, DualPipe", OVER_EAGER[0][2], gain, f"{config}, {_how(about)}: {schedule}, {how}"


def _how(about: Mapping[str, Any]) -> str:
    return {"paced": "paced", "real": "measured", "simulated": "simulated"}[about["kind"]]


def _gain(rows: Rows, config: str, slow: Variant, fast: Variant) -> float | None:
    """The time of one over that of the other: measured where both are, else simulated where both are."""
    both = [of_variant(rows, config, own) for own in (slow, fast)]
    found = [row for row in both if row is not None]
    if len(found) < len(both):
        return None
    if all(row["measured"] is not None for row in found):
        return median_s(found[0]) / median_s(found[1])
    if all(row["measured"] is None and row["predicted"] is not None for row in found):
        return float(found[0]["predicted"]["seconds"] / found[1]["predicted"]["seconds"])
    return None
