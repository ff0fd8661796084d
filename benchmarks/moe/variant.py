"""One thing that a run of the MoE job compares: a runtime with a schedule, and how its graphs are ordered and made."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from annopipe.scheduling.library import entry

__all__ = ["EAGER", "PAIRED", "REORDERING", "SEQUENTIAL", "Runtime", "Variant", "has_pairs"]

Runtime = Literal["annopipe", "eager", "attached"]
# The schedules that torch.distributed.pipelining runs here, too: those of benchmarks.eager_runtime, without torch.
EAGER = ("gpipe", "1f1b", "interleaved-1f1b", "zbv", "dualpipev")
# Combined graphs that are not reordered; policies that reorder, of annopipe.ordering, without torch.
SEQUENTIAL = "sequential"
PAIRED = ("dualpipe", "dualpipev")  # of the library
REORDERING = ("alternate", "dualpipe", "megatron", "list", "auto", "torch", "search", "optimal")


def has_pairs(schedule: str) -> bool:
    """Whether a schedule of the library runs a forward with a backward as one graph.

    >>> has_pairs("dualpipev"), has_pairs("zbv")
    (True, False)
    """
    return entry(schedule).name in PAIRED


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the table.

    Attributes:
        runtime: our pipeline, torch.distributed.pipelining's, or its schedule object with ``ap.attach``.
        schedule: its name in the library.
        policy: how combined graphs are ordered; None: there are none, pairs run one after the other.
        nano_batches: into how many parts microbatches may be split where that pays; 1: none is.
        compiled: whether computation between communication is compiled.
        skew: how many times its even share of the rows the busiest expert rank gets.
    """

    runtime: Runtime
    schedule: str
    policy: str | None = None
    nano_batches: int = 1
    compiled: bool = False
    skew: float = 1.0

    def __str__(self) -> str:
        """What tables and progress call it.

        >>> str(Variant("annopipe", "dualpipev", "auto", 2)), str(Variant("eager", "zbv", skew=1.5))
        ('annopipe dualpipev, auto, /2', 'eager zbv, skew 1.5')
        """
        said = [f"{self.runtime} {self.schedule}"]
        if self.policy is not None:
            said.append(self.policy)
        if self.nano_batches > 1:
            said.append(f"/{self.nano_batches}")
        if self.compiled:
            said.append("compiled")
        if self.skew != 1.0:
            said.append(f"skew {self.skew:g}")
        return ", ".join(said)

    def plain(self) -> dict[str, Any]:
        """As rows of a result say it."""
        found = dataclasses.asdict(self)
        found["compile"] = found.pop("compiled")
        return found

    @classmethod
    def from_plain(cls, row: Mapping[str, Any]) -> "Variant":
        """Of a row; ``plain`` is its inverse.

        >>> Variant.from_plain(Variant("eager", "zbv").plain()) == Variant("eager", "zbv")
        True
        """
        names = [field.name for field in dataclasses.fields(cls) if field.name != "compiled"]
        return cls(**{name: row[name] for name in names}, compiled=row["compile"])

    def without(self, **changes: Any) -> "Variant":
        """The same with other fields."""
        return dataclasses.replace(self, **changes)
