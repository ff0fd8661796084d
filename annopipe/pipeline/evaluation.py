"""Run a pipeline forward only: modules in evaluation mode, the forwards of the schedule, graphs that save nothing."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator

from torch import nn

from annopipe.graphs.extraction import extract
from annopipe.graphs.ops import has_effect
from annopipe.graphs.stage_graph import body
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.scheduling.schedule_class import Schedule

__all__ = ["evaluation_mode", "forward_only", "forwards_of", "without_gradients"]


def forwards_of(schedule: Schedule) -> Schedule:
    """The forwards of a schedule in its order, each of a whole microbatch, with messages.

    >>> from annopipe.scheduling import placement
    >>> both = Schedule.of(placement.v(1), 1, [["0F0", "1F0", "1B0", "0B0"]])
    >>> [str(action) for action in forwards_of(both).ranks[0]]
    ['0F0', '1F0']
    """
    ranks = [
        [dataclasses.replace(part, nano_batches=1) for action in program for part in action.singles if part.kind == "F"]
        for program in schedule.ranks
    ]
    return Schedule.of(schedule.placement, schedule.microbatches, ranks).lowered()


@contextlib.contextmanager
def evaluation_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """The modules in evaluation mode; afterwards each of their parts is in the mode that it was in."""
    before = {part: part.training for module in modules for part in module.modules()}
    try:
        for part in before:
            part.training = False
        yield
    finally:
        for part, training in before.items():
            part.training = training


@contextlib.contextmanager
def without_gradients(module: nn.Module) -> Iterator[None]:
    """So that no backward is traced, and a module that has none in evaluation mode is not refused."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def forward_only(graphs: StageGraphs) -> StageGraphs:
    """Graphs that hold for any ``requires_grad``, and whose forward saves nothing."""
    forward = graphs.forward
    results = [port.name for port in forward.outputs if port.role in ("output", "buffer_update")]
    effects = [node for node in body(forward.graph) if has_effect(node)]
    kept = extract(forward, results, keep=effects)
    layout = dataclasses.replace(graphs.layout, losses=())
    return dataclasses.replace(graphs, forward=kept, backward=None, frozen=frozenset(), layout=layout)
