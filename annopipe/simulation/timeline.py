"""The result of a simulation, whatever was simulated: a plan of one rank, or a schedule of many."""

import json
from abc import ABC, abstractmethod
from os import PathLike

__all__ = ["Timeline"]


class Timeline(ABC):
    """What happened when, and what it comes to; every time in seconds from the start. `annopipe.simulate` returns one.

    `str(timeline)` draws it for a terminal. A plan's is a `ProgramTimeline`, a schedule's a `ScheduleTimeline`; both
    know more than what is listed here.

    >>> from annopipe.simulation import Task, Timeline, run
    >>> isinstance(run([Task("mm", "compute", 2.0)]), Timeline)
    True
    """

    @property
    @abstractmethod
    def makespan(self) -> float:
        """When everything is finished."""

    @property
    @abstractmethod
    def window(self) -> float:
        """Last end minus first start; of many ranks the largest."""

    @property
    @abstractmethod
    def bubble(self) -> float:
        """Idle share of the time of all ranks, 0 to 1."""

    @property
    @abstractmethod
    def exposed_comm(self) -> float:
        """Seconds of communication that no computation hides."""

    @property
    @abstractmethod
    def peak_memory(self) -> float | None:
        """The most memory that a rank occupies; None when what was simulated does not say what it keeps."""

    @abstractmethod
    def to_dict(self) -> dict[str, object]:
        """Everything as plain data."""

    def to_json(self) -> str:
        """The same as JSON text; the same simulation gives the same text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    @abstractmethod
    def to_html(self, path: str | PathLike[str], title: str | None = None) -> None:
        """Write one self-contained page for a browser; without a title it has one that says what was simulated."""

    @abstractmethod
    def to_png(self, path: str | PathLike[str], title: str | None = None) -> None:
        """Write a picture; needs matplotlib.

        Raises AnnopipeError when matplotlib is not installed.
        """

    @abstractmethod
    def to_perfetto(self, path: str | PathLike[str]) -> None:
        """Write a Chrome trace (JSON) for https://ui.perfetto.dev or chrome://tracing."""
