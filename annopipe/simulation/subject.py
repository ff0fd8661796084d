"""`annopipe.simulate`: one function for everything that can be simulated."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload, runtime_checkable

from annopipe.errors import CostError, GraphError
from annopipe.simulation.program_timeline import ProgramTimeline
from annopipe.simulation.ranks.timeline import ScheduleTimeline
from annopipe.simulation.running import run
from annopipe.simulation.tasks import Network, Task
from annopipe.simulation.timeline import Timeline

__all__ = ["Simulatable", "SimulatableSchedule", "simulate"]


@runtime_checkable
class Simulatable(Protocol):
    """What `simulate` accepts: anything that can say what its thread does, in order."""

    # A property, so that a method with or without an argument for costs fits.
    @property
    def program(self) -> Callable[..., Sequence[Task]]:
        """`program()` returns one rank's tasks at the subject's own costs, `program(costs)` those at other costs."""


@runtime_checkable
class SimulatableSchedule(Protocol):
    """What `simulate` accepts for many ranks: anything that can say how it runs at given costs of its actions."""

    def simulated(self, costs: Any = None) -> ScheduleTimeline:
        """The timeline at these costs; None is the costs that the subject takes for a unit."""


@overload
def simulate(subject: Simulatable, costs: object | None = None, network: Network | None = None) -> ProgramTimeline: ...
@overload
def simulate(subject: SimulatableSchedule, costs: object | None = None) -> ScheduleTimeline: ...
def simulate(
    subject: Simulatable | SimulatableSchedule, costs: object | None = None, network: Network | None = None
) -> Timeline:
    """Simulate a plan or a schedule on a cluster that need not be there: when everything runs, what is hidden.

    `costs` replaces the costs that a plan was made with (seconds); of a schedule they are the `ActionCosts`, and None
    is `annopipe.costs.table()`: one unit for F, I and W, two for B, and no time for messages.
    `network` None is the network that comes with the costs, else the plan's own, else `Network()`: one transfer after
    the other, all groups on one link. The costs of a schedule say what its messages take.

    Raises GraphError when the subject is nothing that can be simulated, CostError, OrderError or ScheduleError when its
    costs or its program are wrong.

    >>> from annopipe.simulation import Task, simulate
    >>> class Plan:
    ...     def program(self, costs=1.0):
    ...         return [Task("mm", "compute", costs)]
    >>> simulate(Plan()).makespan, simulate(Plan(), costs=2.0).makespan
    (1.0, 2.0)
    """
    if isinstance(subject, type) or not isinstance(subject, Simulatable | SimulatableSchedule):
        found = f"the class {subject.__name__}" if isinstance(subject, type) else f"a {type(subject).__name__}"
        raise GraphError(
            f"cannot simulate {found}; give an OverlapPlan (annopipe.overlap returns one), a Schedule, or another "
            "object whose method program() returns a sequence of annopipe.simulation.Task"
        )
    if isinstance(subject, SimulatableSchedule):
        if network is not None:
            raise CostError("a schedule takes no network; costs=annopipe.costs.table(send=..., latency=...) says it")
        return subject.simulated(costs)
    program = subject.program() if costs is None else subject.program(costs)
    for owner in (costs, subject):
        network = network or getattr(owner, "network", None)
    return run(program, network or Network())
