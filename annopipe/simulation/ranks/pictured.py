"""What a picture, a table or a trace needs to know about a run of many ranks.

A simulated schedule has it (`ScheduleTimeline`); so can a measured run.
"""

from collections.abc import Sequence
from typing import Protocol

from annopipe.simulation.ranks.spans import Message, RankSpan

__all__ = ["Pictured"]


class Pictured(Protocol):
    """A run of a pipeline schedule: spans and memory of each rank, the messages, and the key numbers."""

    @property
    def name(self) -> str:
        """What the schedule is called."""

    @property
    def ranks(self) -> int:
        """How many ranks there are."""

    @property
    def spans(self) -> Sequence[Sequence[RankSpan]]:
        """Per rank what its computation does, in order."""

    @property
    def messages(self) -> Sequence[Message]:
        """Everything that ranks send each other."""

    @property
    def message_count(self) -> int:
        """How many messages there are."""

    @property
    def comm_time(self) -> float:
        """Seconds for which messages occupy links, all links together."""

    @property
    def makespan(self) -> float:
        """Seconds from the start of the step to its last end."""

    @property
    def window(self) -> float:
        """The largest time, over ranks, from first start to last end."""

    @property
    def bubble(self) -> float:
        """The idle share of all rank-time, 0 to 1."""

    @property
    def bubbles(self) -> Sequence[float]:
        """The idle share of each rank."""

    @property
    def peak_memory(self) -> float:
        """The largest of the peaks."""

    @property
    def peaks(self) -> Sequence[float]:
        """The most memory that each rank holds at once."""

    @property
    def memory(self) -> Sequence[Sequence[tuple[float, float]]]:
        """Per rank the steps of its memory: from this time on it holds that much."""

    @property
    def exposed_comm(self) -> float:
        """Rank-seconds during which a rank waits for a message."""

    @property
    def critical_path(self) -> Sequence[RankSpan | Message]:
        """What has to get shorter for the makespan to get shorter, in order of time."""
