"""What the ranks of the job are told and tell, as plain data."""

import dataclasses
import json

from annopipe.costs.fitting import Line
from annopipe.tuning.layers import Layer
from benchmarks.moe.case import MoeCase

__all__ = ["Measured", "Runs"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the ranks have measured before anything is searched for.

    exchange: all-to-alls of an expert group.  issue_s: what the thread spends to start one.
    in_flight: how many of them share the link.
    send: messages between two ranks of a pipeline.
    stretch_s: what a stretch of computation is asked to take.
    layers: one for each block of the model, measured on its own.
    """

    exchange: Line
    issue_s: float
    in_flight: int
    send: Line
    stretch_s: float
    layers: tuple[Layer, ...]
    seconds: float

    def to_json(self) -> str:
        """One line; ``from_json`` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Measured":
        """What ``to_json`` wrote."""
        fields = json.loads(text)
        layers = tuple(Layer(**layer) for layer in fields["layers"])
        lines = {name: Line(**fields[name]) for name in ("exchange", "send")}
        return cls(**{**fields, **lines, "layers": layers})


@dataclasses.dataclass(frozen=True)
class Runs:
    """What to run: configs of ``ap.tune``, by the name of their schedule, with what was measured."""

    case: MoeCase
    measured: Measured
    configs: dict[str, str]

    def to_json(self) -> str:
        """One line; ``from_json`` reads it."""
        return json.dumps([self.case.to_json(), self.measured.to_json(), self.configs])

    @classmethod
    def from_json(cls, text: str) -> "Runs":
        """What ``to_json`` wrote."""
        case, measured, configs = json.loads(text)
        return cls(MoeCase.from_json(case), Measured.from_json(measured), configs)
