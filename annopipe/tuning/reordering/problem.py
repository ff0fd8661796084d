"""A schedule as flat lists for a search over orders: what each action takes, waits for, sends and keeps in memory.

Backwards that run alone are taken apart into I and W, so that a W can run later than its I; see `joining`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import Action
from annopipe.scheduling.numbering import Numbering
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.schedule_class import Schedule
from annopipe.scheduling.simulating import rank_programs

__all__ = ["Orders", "Problem"]

Orders = list[list[int]]  # the numbers of the computations of every rank, in order


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """What does not change when actions move; by number, as in `RankPrograms`.

    Attributes:
        placement: of the stages.
        numbering: what the numbers mean.
        start: the orders of the schedule.
        durations: of computations, and of messages on their link.
        inputs: what a computation waits for: computations of its rank, and messages.
        sends: the messages that go out when a computation has ended; B has inputs and messages of its I.
        link: of a message.
        latencies: of each link, from the end of a message to its arrival.
        takes, gives: memory that a computation's start takes, and its end gives back.
        room: what each rank may hold of that.
    """

    placement: Placement
    numbering: Numbering
    start: Orders
    durations: Sequence[float]
    inputs: Sequence[tuple[int, ...]]
    sends: Sequence[tuple[int, ...]]
    link: Sequence[int]
    latencies: Sequence[float]
    takes: Sequence[float]
    gives: Sequence[float]
    room: Sequence[float]

    @cached_property
    def change(self) -> Sequence[float]:
        """What each action adds to the memory for good."""
        return [take - give for take, give in zip(self.takes, self.gives, strict=True)]

    @cached_property
    def most(self) -> Sequence[float]:
        """What it adds while it runs or for good: an I may keep more than it gives back."""
        return [*map(max, self.takes, self.change)]

    @classmethod
    def of(cls, schedule: Schedule, costs: ActionCosts, memory: float | None = None) -> "Problem":
        """The problem of a schedule without messages and operations, at these costs.

        memory: most that a rank may hold, of activations and parameters.
        """
        split = _split(schedule.programs, costs)
        numbering = split.numbering
        flat = rank_programs(split, costs)
        size = len(flat.durations)
        orders = [[number for number in row if flat.link[number] < 0] for row in flat.ranks]
        inputs: list[tuple[int, ...]] = [()] * size
        sends: list[tuple[int, ...]] = [()] * size
        maker: dict[int, int] = {part: whole for whole, parts in flat.parts.items() for part in parts}
        batch = _whole_batch(split)
        for order in orders:
            for number in order:
                singles = flat.parts.get(number, (number,))
                more = tuple(forward for single in singles for forward in batch.get(single, ()))
                waits = (maker.get(before, before) for before in (*flat.inputs(number), *more))
                inputs[number] = tuple(dict.fromkeys(before for before in waits if before != number))
        for row in flat.ranks:
            for number in row:
                if flat.link[number] >= 0:
                    made = maker.get(flat.first[number], flat.first[number])
                    sends[made] += (number,)
        for order in orders:
            for number in order:
                if 2 * numbering.block <= number < 3 * numbering.block:  # should its W be joined to it again
                    inputs[number - numbering.block], sends[number - numbering.block] = inputs[number], sends[number]
        limit = float("inf") if memory is None else memory * (1 + 1e-9)
        return cls(
            split.placement,
            numbering,
            orders,
            flat.durations,
            inputs,
            sends,
            flat.link,
            flat.latencies,
            flat.at_start,
            [-change for change in flat.at_end],
            [limit - held for held in flat.parameters],
        )

    def schedule(self, orders: Orders, name: str = "") -> Schedule:
        """The schedule of some orders."""
        return Schedule(Programs.numbered(self.placement, self.numbering, orders), name)


def _split(programs: Programs, costs: ActionCosts) -> Programs:
    """The same with I and W instead of B, where these take as long together and keep no more in between."""
    block, m = programs.numbering.block, programs.microbatches
    splits = [costs.B is None and costs.kept_for_weight_of(stage) <= 1.0 for stage in range(programs.placement.stages)]
    rows = []
    for program in programs.ranks:
        row: list[int] = []
        for number in program:
            is_whole = block <= number < 2 * block and splits[(number - block) // m]
            row += [number + block, number + 2 * block] if is_whole else [number]
        rows.append(row)
    return Programs.numbered(programs.placement, programs.numbering, rows)


def _whole_batch(programs: Programs) -> dict[int, list[int]]:
    """For backwards that wait for all forwards of their stage, those forwards."""
    placement, numbering = programs.placement, programs.numbering
    found: dict[int, list[int]] = {}
    for stage in placement.batch_wide:
        microbatches = placement.microbatches_of(stage, programs.microbatches)
        forwards = [numbering.number(Action("F", stage, microbatch)) for microbatch in microbatches]
        for kind in ("B", "I"):
            found |= dict.fromkeys([numbering.number(Action(kind, stage, k)) for k in microbatches], forwards)
    return found
