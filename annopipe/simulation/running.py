"""`run`: from a program to its timeline."""

from collections.abc import Sequence

from annopipe.errors import CostError
from annopipe.simulation.engine import record
from annopipe.simulation.program_timeline import ProgramTimeline
from annopipe.simulation.tasks import Network, Task, check_program

__all__ = ["run"]

_DEFAULT = Network()


def run(tasks: Sequence[Task], network: Network = _DEFAULT) -> ProgramTimeline:
    """Simulate a program and keep everything that happened.

    All times are seconds. Raises CostError, OrderError or GraphError for a program that cannot run; the message names
    the task and what to do.

    >>> program = [
    ...     Task("exchange", "launch", 3.0, queue="ep"),
    ...     Task("attention", "compute", 2.0),
    ...     Task("wait", "wait", launch=0, after=(0,)),
    ... ]
    >>> timeline = run(program)
    >>> timeline.makespan, timeline.exposed_comm, timeline.hidden_comm
    (3.0, 1.0, 2.0)
    """
    if not isinstance(network, Network):
        raise CostError(f"network is {network!r}: give an annopipe.simulation.Network")
    program = tuple(tasks)
    check_program(program)
    return ProgramTimeline(record(program, network))
