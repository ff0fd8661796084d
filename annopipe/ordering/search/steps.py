"""A problem as flat lists of steps, for code that times many orders of it.

    compute -- launch .. wait -- compute    becomes    compute -- launch -- compute (needs the launch's transfer)

A wait takes no time of its own and is best late, so it is no step: what depends on it needs its transfer.
"""

import dataclasses
from collections.abc import Sequence

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.problem import OverlapProblem

__all__ = ["StepBytes", "Steps", "is_timed_exactly", "slowed_end", "steps_of"]


@dataclasses.dataclass(frozen=True)
class StepBytes:
    """What steps hold, in bytes; empty where the problem does not say.

    inputs: live before the first step.  made: by each step, for others.  transient: the peak during each step, beyond
    what is live before it.  sizes, users: of each value that is forgotten behind the last of its users.
    """

    inputs: int = 0
    made: tuple[int, ...] = ()
    transient: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    users: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Steps:
    """Steps in program order, by their number.

    problem: what they were made from.  nodes: the node of each step.
    seconds: on the thread.  transfer: of launches, seconds of the link; else 0.  link: of launches; else -1.
    links: how many there are.  computes: 1.0 where interference slows a step, else 0.0.
    before: steps that come first.  after: the other way round.  needs: launches whose transfers must be over.
    """

    problem: OverlapProblem
    nodes: tuple[int, ...]
    seconds: tuple[float, ...]
    transfer: tuple[float, ...]
    link: tuple[int, ...]
    links: int
    computes: tuple[bool, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    needs: tuple[tuple[int, ...], ...]
    memory: StepBytes = StepBytes()

    def __len__(self) -> int:
        """How many steps there are."""
        return len(self.nodes)

    def timed(self, order: Sequence[int]) -> float:
        """Seconds that an order of steps takes, each link carrying one transfer after the other."""
        seconds, transfer, link, needs = self.seconds, self.transfer, self.link, self.needs
        slowness = 1.0 + self.problem.network.interference
        over, free, clock = [0.0] * len(seconds), [0.0] * self.links, 0.0
        for i in order:
            for launch in needs[i]:
                clock = max(clock, over[launch])
            if slowness > 1.0 and self.computes[i]:
                clock = slowed_end(clock, seconds[i], slowness, max(free, default=0.0))
            else:
                clock += seconds[i]
            if link[i] >= 0:
                over[i] = free[link[i]] = max(clock, free[link[i]]) + transfer[i]
        return max([clock, *free])

    def peak_bytes(self, order: Sequence[int]) -> int:
        """The most bytes that are live at a time, by ``memory``."""
        memory, live = self.memory, self.memory.inputs
        left = [len(users) for users in memory.users]
        used: list[list[int]] = [[] for _ in order]
        for value, users in enumerate(memory.users):
            for user in users:
                used[user].append(value)
        peak = live
        for step in order if memory.made else ():
            peak = max(peak, live + memory.transient[step])
            live += memory.made[step]
            for value in used[step]:
                left[value] -= 1
                live -= memory.sizes[value] if not left[value] else 0
        return peak

    def from_nodes(self, order: Sequence[int]) -> list[int]:
        """An order of the problem's nodes as one of steps."""
        number = {node: step for step, node in enumerate(self.nodes)}
        return [number[node] for node in order if node in number]

    def to_nodes(self, order: Sequence[int]) -> list[int]:
        """An order of steps as one of the problem's nodes, waits as late as they can be."""
        problem, done = self.problem, [False] * len(self.problem.nodes)
        found: list[int] = []

        def emit(index: int) -> None:
            for source in problem.dependencies[index]:
                if not done[source]:  # a wait, since the steps come in a legal order
                    emit(source)
            done[index] = True
            found.append(index)

        for step in order:
            emit(self.nodes[step])
        for index in range(len(problem.nodes)):
            if not done[index]:
                emit(index)
        return waits_late(problem, found)


def is_timed_exactly(problem: OverlapProblem) -> bool:
    """Whether each link carries one transfer after the other, as steps are timed, and nothing slows computation."""
    network = problem.network
    queues = {node.queue for node in problem.nodes if node.kind == "launch"}
    alone = network.in_flight == 1 and (len(queues) < 2 or not network.shared_link)
    return (alone or not queues) and not network.interference


def slowed_end(start: float, seconds: float, slowness: float, idle: float) -> float:
    """The end of a computation that takes ``slowness`` times as long until the links are idle.

    >>> slowed_end(0.0, 2.0, 1.5, idle=1.5)
    2.5
    """
    slowest = start + seconds * slowness
    if idle <= start:
        return start + seconds
    return slowest if idle >= slowest else idle + max(0.0, seconds - (idle - start) / slowness)


def steps_of(problem: OverlapProblem) -> Steps:
    """The steps of a problem with costs.

    >>> from annopipe.ordering.problem import OverlapNode
    >>> nodes = (
    ...     OverlapNode(0, "l", "r", "launch", "F", "", 2.0, "ep"),
    ...     OverlapNode(1, "w", "r", "wait", "F", "", launch=0),
    ...     OverlapNode(2, "c", "r", "compute", "F", "", 1.0),
    ... )
    >>> steps_of(OverlapProblem(nodes, ((), (0,), (1,)))).needs
    ((), (0,))
    """
    nodes = tuple(node.index for node in problem.nodes if node.kind != "wait")
    number = {node: step for step, node in enumerate(nodes)}
    passed: dict[int, tuple[set[int], set[int]]] = {}  # of each wait: the steps and transfers that it stands for
    before, needs = [], []
    for node in problem.nodes:
        first: set[int] = set()
        arrived: set[int] = set()
        for source in problem.dependencies[node.index]:
            if source in passed:
                first |= passed[source][0]
                arrived |= passed[source][1]
            else:
                first.add(number[source])
        if node.kind == "wait":
            launch = number[node.launch]
            passed[node.index] = first | {launch}, arrived | {launch}
        else:
            before.append(tuple(sorted(first)))
            needs.append(tuple(sorted(arrived)))
    after: list[list[int]] = [[] for _ in nodes]
    for step, earlier in enumerate(before):
        for source in earlier:
            after[source].append(step)
    queues: dict[str, int] = {}
    link = []
    for index in nodes:
        node = problem.nodes[index]
        key = "" if problem.network.shared_link else node.queue
        link.append(queues.setdefault(key, len(queues)) if node.kind == "launch" else -1)
    return Steps(
        problem,
        nodes,
        tuple(problem.nodes[index].thread_time for index in nodes),
        tuple(problem.nodes[index].cost if problem.nodes[index].kind == "launch" else 0.0 for index in nodes),
        tuple(link),
        len(queues),
        tuple(problem.nodes[index].kind == "compute" for index in nodes),
        tuple(before),
        tuple(tuple(users) for users in after),
        tuple(needs),
    )
