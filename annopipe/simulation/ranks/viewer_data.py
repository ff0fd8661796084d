"""What the page's script needs to draw schedules, compactly: a schedule may have a hundred thousand actions.

Times are whole numbers of a tick, mostly as differences to what came before. `viewer.js` beside this file reads it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from annopipe.simulation.ranks.curves import settled
from annopipe.simulation.ranks.looks import Looks, Piece
from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.ranks.spans import RankSpan
from annopipe.simulation.ranks.units import common_unit
from annopipe.simulation.ranks.uses import sent_action, users

__all__ = ["viewer_data"]

_TICKS = 1e8  # of the makespan, where times have no common unit


def viewer_data(timelines: Mapping[str, Pictured]) -> dict[str, object]:
    """The data of a page: the looks that occur, as [kind, word, chunk, colour, hatched, lanes], and the timelines.

    Of each timeline, besides its numbers and the length of a tick in seconds:

    shapes: [text, kind, then per action inside: number of its look, stage]; text is "" where it follows from the rest.
    spans, per rank: of each the pause before it, duration, shape, then the microbatch (or -1) of each action inside.
    critical, per rank: positions of spans on the critical path, as differences.
    arrivals, per rank: of each message that a span uses the position of the span (as difference), the sender, the
        sending stage, 0 for activations or 1 for gradients, the microbatch, and how long before the span's start it
        arrives, before that is sent, and before that takes its link.
    memory, per rank: of each step the time (as difference) and the amount.
    """
    looks = Looks(timelines.values())
    numbers: dict[tuple[str, int, int], int] = {}
    drawings = [_Drawing(timeline, looks, numbers).data() for timeline in timelines.values()]
    found = [looks.of(*key) for key in numbers]
    return {
        "looks": [[look.kind, look.word, look.chunk, look.colour, look.hatched, look.lanes] for look in found],
        "chunks": looks.chunks,
        "timelines": drawings,
    }


class _Drawing:
    """One timeline on its way to plain data."""

    def __init__(self, timeline: Pictured, looks: Looks, numbers: dict[tuple[str, int, int], int]) -> None:
        self.timeline, self.looks, self.numbers = timeline, looks, numbers
        self.memory = [settled(steps) for steps in timeline.memory]
        self.tick = common_unit(self._times()) or timeline.makespan / _TICKS or 1.0
        self.shapes: dict[tuple[object, ...], int] = {}

    def data(self) -> dict[str, object]:
        timeline = self.timeline
        spans = [self._spans(row) for row in timeline.spans]
        return {
            "makespan": timeline.makespan,
            "tick": self.tick,
            "shapes": list(self.shapes),
            "spans": spans,
            "critical": self._critical(),
            "arrivals": self._arrivals(),
            "memory": [self._steps(steps) for steps in self.memory],
            "bubbles": [round(bubble, 6) for bubble in timeline.bubbles],
            "peaks": list(timeline.peaks),
            "peak": timeline.peak_memory,
        }

    def _times(self) -> Iterator[float]:
        for span in chain.from_iterable(self.timeline.spans):
            yield span.start
            yield span.end
        for message in self.timeline.messages:
            yield message.start
            yield message.sent
            yield message.arrival
        for step in chain.from_iterable(self.memory):
            yield step[0]

    def _at(self, seconds: float) -> int:
        return round(seconds / self.tick)

    def _spans(self, row: Sequence[RankSpan]) -> list[int]:
        found: list[int] = []
        before = 0
        for span in row:
            start, end = self._at(span.start), self._at(span.end)
            shape, microbatches = self._shape(span)
            found += (start - before, end - start, shape, *microbatches)
            before = end
        return found

    def _shape(self, span: RankSpan) -> tuple[int, list[int]]:
        pieces = self.looks.pieces(self.timeline, span)
        inside: list[int] = []
        for piece in pieces:
            key = piece.kind, piece.chunk, piece.lanes
            inside += (self.numbers.setdefault(key, len(self.numbers)), piece.stage)
        texts = [_text(piece) for piece in pieces]
        usual = f"({';'.join(texts)}){span.kind}" if span.parts else texts[0]
        shape = ("" if span.text == usual else span.text, span.kind, *inside)
        number = self.shapes.setdefault(shape, len(self.shapes))
        return number, [-1 if piece.microbatch is None else piece.microbatch for piece in pieces]

    def _critical(self) -> list[list[int]]:
        path = {(part.text, part.start) for part in self.timeline.critical_path}
        return [
            _differences([at for at, span in enumerate(row) if (span.text, span.start) in path])
            for row in self.timeline.spans
        ]

    def _arrivals(self) -> list[list[int]]:
        found: list[list[tuple[int, ...]]] = [[] for _ in self.timeline.spans]
        for message, place in zip(self.timeline.messages, users(self.timeline, self.looks), strict=True):
            action = sent_action(message)
            if place is not None and action is not None:
                stage, direction, microbatch = action
                rank, at = place
                start = self._at(self.timeline.spans[rank][at].start)
                arrival, sent, begin = self._at(message.arrival), self._at(message.sent), self._at(message.start)
                back = (start - arrival, arrival - sent, sent - begin)
                found[rank].append((at, message.sender, stage, int(direction == "B"), microbatch, *back))
        flat: list[list[int]] = []
        for arrivals in found:
            arrivals.sort()
            positions = _differences([arrival[0] for arrival in arrivals])
            flat.append([n for at, arrival in zip(positions, arrivals, strict=True) for n in (at, *arrival[1:])])
        return flat

    def _steps(self, steps: list[tuple[float, float]]) -> list[float]:
        times = _differences([self._at(time) for time, _ in steps])
        amounts = [int(amount) if amount == int(amount) else amount for _, amount in steps]
        return [number for step in zip(times, amounts, strict=True) for number in step]


def _text(piece: Piece) -> str:
    microbatch = "" if piece.microbatch is None else piece.microbatch
    return f"{piece.stage}{piece.kind}{microbatch}{f'/{piece.lanes}' if piece.lanes > 1 else ''}"


def _differences(numbers: list[int]) -> list[int]:
    """Each number less the one before it.

    >>> _differences([3, 5, 5, 9])
    [3, 2, 0, 4]
    """
    return [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]
