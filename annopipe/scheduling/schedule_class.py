"""A pipeline schedule: which rank does what in which order."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from annopipe.errors import ScheduleError
from annopipe.scheduling import csv_format, simulating
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import Action
from annopipe.scheduling.checking.checker import check
from annopipe.scheduling.lowering.passes import lower
from annopipe.scheduling.nano_batching.record import NanoBatching
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.programs import Programs
from annopipe.scheduling.torch_waits import is_waited_for
from annopipe.simulation.files import place_for
from annopipe.simulation.ranks.timeline import ScheduleTimeline

__all__ = ["Schedule"]


# No slots: the actions are made on first use and kept.
@dataclass(frozen=True, repr=False)
class Schedule:
    """One list of actions per rank; it never changes.

    Attributes:
        programs: the actions as numbers.
        name: what pictures and tables call it.
        operations: what its operations of users need.
        nano_batching: why it has its nano-batches, or none, where ``ap.with_nano_batches`` chose them.

    >>> from annopipe.scheduling import placement
    >>> schedule = Schedule.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    >>> [str(action) for action in schedule.ranks[1]]
    ['1F0', '1B0']
    """

    programs: Programs
    name: str = field(default="", compare=False)
    operations: tuple[Operation, ...] = ()
    nano_batching: NanoBatching | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls, placement: Placement, microbatches: int, ranks: Sequence[Iterable[Action | str]], name: str = ""
    ) -> "Schedule":
        """Write a schedule by hand: the actions of each rank, or their texts.

        Raises ScheduleError for a text that is no action, or a stage or microbatch that is not there. It is not checked
        further: `check` does that.
        """
        return cls(Programs.of(placement, microbatches, ranks), name)

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        placement: Placement | None = None,
        *,
        microbatches: int | None = None,
        name: str = "",
        operations: Sequence[Operation] = (),
    ) -> "Schedule":
        """Read a file that `to_csv`, or PyTorch, wrote: one row per rank, each cell an action.

        Args:
            path: the file.
            placement: which rank holds which stage; None takes it from the rows, and the stages as one chain.
            microbatches: how many there are; None is those that cells name.
            name: what tables call the schedule; "" is the file's name.
            operations: what operations of users need; the file only names them.

        Raises ScheduleError for a file that cannot be read, or that is not wholly such rows, with row and column.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8")
        except (OSError, ValueError) as error:
            raise ScheduleError(f"cannot read {path}: {error}") from error
        programs = csv_format.read(text, placement=placement, microbatches=microbatches, source=str(path))
        return cls(programs, name or Path(path).stem, tuple(operations))

    def to_csv(self, path: str | os.PathLike[str], *, waits: bool = False) -> None:
        """Write the actions as PyTorch's pipelining does, one row per rank; makes the folder if it is missing.

        The file has no placement and no operations: a schedule with stages that are no chain, or with operations of
        users, needs them again to be read.

        Args:
            path: the file.
            waits: also WAIT_SEND_F, WAIT_SEND_B and WAIT_REDUCE_GRAD, with which PyTorch 2.15 and later runs a file
                that has messages; earlier releases refuse them. Reading leaves them out.

        Raises AnnopipeError when the file cannot be written, ScheduleError for waits where ranks have no messages.

        >>> import pathlib, tempfile
        >>> from annopipe.scheduling import placement
        >>> schedule = Schedule.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "naive.csv")
        ...     schedule.to_csv(path)
        ...     Schedule.from_csv(path) == schedule
        True
        """
        several = self.placement.ranks > 1
        if waits and several and not any(is_waited_for(action) for row in self.ranks for action in row):
            raise ScheduleError("a rank waits for messages, and this schedule has none: write schedule.lowered()")
        with place_for(path) as place:
            place.write_text(csv_format.write(self.programs, waits=waits), encoding="utf-8", newline="\n")

    def check(self, *, memory: float | None = None, costs: ActionCosts | None = None, rendezvous: bool = False) -> None:
        """Raise ScheduleError, with rank, step and action, when the schedule cannot be run or is not a whole step.

        Args:
            memory: how much of activations a rank may keep, in the unit of `costs.activation`; None is any amount.
            costs: what each stage's activation takes; without it one microbatch on one stage takes 1.
            rendezvous: also ask that both ranks of each pair have their messages in one order.

        >>> from annopipe.scheduling import placement
        >>> Schedule.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]]).check(memory=1)
        """
        check(self.programs, memory=memory, costs=costs, rendezvous=rendezvous, operations=self.operations)

    def lowered(self, *, parameters: bool = False, max_active: int = 3, rendezvous: bool = True) -> "Schedule":
        """The schedule with messages between ranks, anew when there are some.

        Args:
            parameters: also UNSHARD, RESHARD and REDUCE_GRAD, for parameters that are sharded over other ranks.
            max_active: how many stages of a rank may be unsharded at a time.
            rendezvous: keep one order of messages for each pair of ranks also where stages meet; see `add_messages`.

        Raises ScheduleError when ranks wait for each other.

        >>> from annopipe.scheduling import placement
        >>> schedule = Schedule.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
        >>> [str(action) for action in schedule.lowered().ranks[0]]
        ['0F0', '0SEND_F0', '0RECV_B0', '0B0']
        """
        lowered = lower(self.programs, parameters=parameters, max_active=max_active, rendezvous=rendezvous)
        return Schedule(lowered, self.name, self.operations, self.nano_batching)

    def __repr__(self) -> str:
        kinds = Counter(self.programs.numbering.kind(number) for program in self.programs.ranks for number in program)
        counts = " ".join(f"{count} {kind}" for kind, count in kinds.items()) or "no actions"
        named = f"{self.name}: " if self.name else ""
        held = f"{self.placement.ranks} ranks, {self.placement.stages} stages, {self.microbatches} microbatches"
        return f"Schedule({named}{held}; {counts})"

    @property
    def placement(self) -> Placement:
        """Which rank holds which stage, and what flows where."""
        return self.programs.placement

    @property
    def microbatches(self) -> int:
        """How many microbatches a step has."""
        return self.programs.microbatches

    @cached_property
    def ranks(self) -> tuple[tuple[Action, ...], ...]:
        """The actions of each rank, in order."""
        return tuple(self.programs.actions(rank) for rank in range(self.placement.ranks))

    def simulated(self, costs: ActionCosts | None = None) -> ScheduleTimeline:
        """When every action runs at these costs; `annopipe.simulate` calls it.

        It need not be a whole step (an I without its W is simulated as it stands); `check` asks for that.

        Raises ScheduleError when the schedule cannot finish or does something twice, CostError when the costs are of
        other stages.
        """
        return simulating.simulate(self.programs, ActionCosts() if costs is None else costs, self.operations, self.name)
