"""`annopipe.simulate`: one function for everything that can be simulated."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from annopipe.errors import GraphError
from annopipe.simulation.running import run
from annopipe.simulation.tasks import Network, Task
from annopipe.simulation.timeline import Timeline

__all__ = ["Simulatable", "simulate"]


@runtime_checkable
class Simulatable(Protocol):
    """What `simulate` accepts: anything that can say what its thread does, in order."""

    # A property, so that a method with or without an argument for costs fits.
    @property
    def program(self) -> Callable[..., Sequence[Task]]:
        """`program()` returns one rank's tasks at the subject's own costs, `program(costs)` those at other costs."""


def simulate(subject: Simulatable, costs: object | None = None, network: Network | None = None) -> Timeline:
    """Simulate a plan on a cluster that need not be there: when everything runs and which communication is hidden.

    `costs` replaces the costs that the subject was made with (seconds). `network` None is the network that comes with
    the costs, else the subject's own, else `Network()`: one transfer after the other, all groups on one link.

    Raises GraphError when the subject is nothing that can be simulated, CostError or OrderError when its program is
    wrong.

    >>> from annopipe.simulation import Task, simulate
    >>> class Plan:
    ...     def program(self, costs=1.0):
    ...         return [Task("mm", "compute", costs)]
    >>> simulate(Plan()).makespan, simulate(Plan(), costs=2.0).makespan
    (1.0, 2.0)
    """
    if not isinstance(subject, Simulatable) or isinstance(subject, type):
        found = f"the class {subject.__name__}" if isinstance(subject, type) else f"a {type(subject).__name__}"
        raise GraphError(
            f"cannot simulate {found}; give an OverlapPlan (annopipe.overlap returns one) or another object whose "
            "method program() returns a sequence of annopipe.simulation.Task"
        )
    program = subject.program() if costs is None else subject.program(costs)
    for owner in (costs, subject):
        network = network or getattr(owner, "network", None)
    return run(program, network or Network())
