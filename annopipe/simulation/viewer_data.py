"""What the page's script needs to draw timelines.

A colour belongs to a region's own name, so that "block0/moe/dispatch" and "block7/moe/dispatch" look alike; names are
sorted, so the same regions have the same colours on every page.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from annopipe.simulation.exposure import exposed_by_launch
from annopipe.simulation.spans import Span
from annopipe.simulation.wording import seconds_text

if TYPE_CHECKING:
    from annopipe.simulation.program_timeline import ProgramTimeline

__all__ = ["viewer_data"]

_FIRST_HUE = 25.0


def viewer_data(timelines: Mapping[str, "ProgramTimeline"]) -> dict[str, object]:
    """What the script `viewer.js` draws, as plain data.

    A span is [start, end, kind, name, colour, region, lane, phase, detail, launch]: six numbers of texts from name on,
    and the position of the launch that joins a transfer with its wait.
    """
    every = [span for timeline in timelines.values() for span in timeline.spans]
    names = sorted({_own_name(span.region) for span in every} - {""})
    texts: dict[str, int] = {"": 0}
    drawings = []
    for timeline in timelines.values():
        details = _details(timeline)
        rows = [
            {"label": track.label, "spans": [_record(timeline, span, details, texts) for span in track.spans]}
            for track in timeline.tracks
        ]
        drawings.append({"makespan": timeline.makespan, "rows": rows})
    return {
        "hues": {name: round((_FIRST_HUE + 360 * number / len(names)) % 360, 1) for number, name in enumerate(names)},
        "lanes": sorted({span.lane for span in every} - {""}),
        "timelines": drawings,
        "texts": list(texts),
    }


def _record(timeline: "ProgramTimeline", span: Span, details: Mapping[int, str], texts: dict[str, int]) -> list[object]:
    strings = (span.name, _own_name(span.region), span.region, span.lane, span.phase)
    task = timeline.trace.tasks[span.position]
    pair = {"launch": span.position, "wait": task.launch}.get(span.kind, -1)
    detail = details.get(span.position, "")
    return [span.start, span.end, span.kind, *(texts.setdefault(text, len(texts)) for text in (*strings, detail)), pair]


def _details(timeline: "ProgramTimeline") -> dict[int, str]:
    """A sentence for the tooltip, by position: why a wait stalls, what the host reads, what is exposed."""
    trace = timeline.trace
    exposed = exposed_by_launch(trace)
    found = {wait: stall.reason for wait, stall in zip(trace.stalled, timeline.stalls, strict=True)}
    for launch, transfer in trace.transfers.items():
        queued = f", {seconds_text(transfer.queued)} in the queue" if transfer.queued else ""
        found[launch] = f"{seconds_text(exposed.get(launch, 0.0))} exposed{queued}"
    for sync in timeline.host_syncs:
        found.update(dict.fromkeys(sync.read_positions, sync.sentence))
    return found


def _own_name(region: str) -> str:
    return region.rpartition("/")[2]
