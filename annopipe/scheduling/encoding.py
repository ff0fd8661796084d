"""The flat lists that the simulation takes, from a schedule's programs and the costs of its actions.

The lists are filled stage by stage with slices, so that half a million actions take a few milliseconds. Numbers are
those of the programs' numbering; the further messages of a sending action that sends to more than one stage, and
nothing else, have numbers behind it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import COMPUTE, Action
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.programs import Programs
from annopipe.simulation.ranks.programs import COMPUTATION, GROUP

__all__ = ["Tables"]


class Tables:
    """What `RankPrograms` holds, by number: see there.

    Attributes:
        lines: links by sender, receiver and "", and resources of one rank by that rank, twice, and their name.
        copied: for every number behind the numbering, the sending action.
    """

    def __init__(self, programs: Programs, costs: ActionCosts, operations: Sequence[Operation] = ()) -> None:
        self._programs, self._costs = programs, costs
        self._numbering, self._placement = programs.numbering, programs.placement
        size = programs.numbering.size
        self._objects = list(range(size))  # one object for each number: half the time, and half the memory
        self.durations = [0.0] * size
        self.first, self.second = [-1] * size, [-1] * size
        self.link = [COMPUTATION] * size
        self.at_start, self.at_end = [0.0] * size, [0.0] * size
        self.lines: dict[tuple[int, int, str], int] = {}
        self.more: dict[int, tuple[int, ...]] = {}
        self.parts = {number: parts for number, parts in programs.numbering.parts.items() if parts}
        self.copied: list[int] = []
        self._taken: set[range] = set()  # the numbers of sending actions that have a message
        self._copies: dict[int, tuple[int, ...]] = {}
        for number in self.parts:
            self.link[number] = GROUP
        self._gradients = self._find_gradients()
        for stage in range(self._placement.stages):
            self._fill_stage(stage)
        self._fill_extras({operation.name: operation for operation in operations})
        self.ranks = self._with_messages()

    def _numbers(self, kind: str, stage: int) -> range:
        first = self._numbering.first(kind, stage)
        return range(first, first + self._numbering.microbatches)

    def _named(self, kind: str, stage: int) -> list[int]:
        numbers = self._numbers(kind, stage)
        return self._objects[numbers.start : numbers.stop]

    def _find_gradients(self) -> list[Sequence[int]]:
        """For each stage and microbatch the action that makes the gradient of its input: B, or I where there is one."""
        done = [False] * self._numbering.size
        for program in self._programs.ranks:
            for number in program:
                done[number] = True
        for parts in self.parts.values():
            for part in parts:
                done[part] = True
        if done.count(True) < sum(map(len, self._programs.ranks)) + sum(map(len, self.parts.values())):
            self._refuse_twice()
        found: list[Sequence[int]] = []
        for stage in range(self._placement.stages):
            whole, split = self._named("B", stage), self._named("I", stage)
            splits = done[split[0] : split[-1] + 1]
            if any(splits):
                found.append([i if is_split else b for b, i, is_split in zip(whole, split, splits, strict=True)])
            else:
                found.append(whole)
        return found

    def _refuse_twice(self) -> None:
        """Raise ScheduleError for an action that is there twice; those without a microbatch may be."""
        seen: set[int] = set()
        for rank, program in enumerate(self._programs.ranks):
            for number in program:
                for single in (number, *self.parts.get(number, ())):
                    if single in seen and self._numbering.action(single).microbatch is not None:
                        text = self._numbering.text(single)
                        raise ScheduleError(f"rank {rank}: {text} is done twice; drop one of them")
                    seen.add(single)

    def _fill_stage(self, stage: int) -> None:
        placement, costs = self._placement, self._costs
        forward, whole = self._numbers("F", stage), self._numbers("B", stage)
        split, weight = self._numbers("I", stage), self._numbers("W", stage)
        for kind, numbers in zip(COMPUTE, (forward, whole, split, weight), strict=True):
            self.durations[numbers.start : numbers.stop] = costs.times(kind, stage, len(numbers))
        self._needs(forward, [self._result("SEND_F", before, stage) for before in placement.predecessors[stage]])
        gradients = [self._result("SEND_B", after, stage) for after in placement.successors[stage]]
        if stage in placement.batch_wide:
            gradients.append([self._last_of(forward, placement.rank_of[stage])] * len(forward))
        self._needs(whole, [self._named("F", stage), *gradients])
        self._needs(split, [self._named("F", stage), *gradients])
        self._needs(weight, [self._named("I", stage)])
        self._fill_memory(stage)

    def _fill_memory(self, stage: int) -> None:
        kept = self._costs.activation_of(stage)
        for_weight = kept * self._costs.kept_for_weight_of(stage)
        changes = [("B", -kept), ("I", for_weight - kept), ("W", -for_weight)]
        if self._is_forward_only:
            changes.append(("F", -kept))
        forward = self._numbers("F", stage)
        self.at_start[forward.start : forward.stop] = [kept] * len(forward)
        for kind, change in changes:
            numbers = self._numbers(kind, stage)
            self.at_end[numbers.start : numbers.stop] = [change] * len(numbers)

    def _needs(self, numbers: range, inputs: Sequence[Sequence[int]]) -> None:
        """Let each action wait for the one in its place in each of the inputs."""
        place = slice(numbers.start, numbers.stop)
        if inputs:
            self.first[place] = inputs[0]
            # One input twice: the interpreter's quick way into a list is for numbers from 0, which -1 is not.
            self.second[place] = inputs[1] if len(inputs) > 1 else self.first[place]
        if len(inputs) > 2:
            self.more.update(zip(numbers, zip(*inputs[2:], strict=True), strict=True))
            self.link[place] = [GROUP] * len(numbers)

    def _result(self, kind: str, source: int, target: int) -> Sequence[int]:
        """What brings a stage's result to another: the action that makes it, or the message from another rank."""
        made = self._named("F", source) if kind == "SEND_F" else self._gradients[source]
        sender, receiver = self._placement.rank_of[source], self._placement.rank_of[target]
        if sender == receiver:
            return made
        sends = self._numbers(kind, source)
        messages = self._further(sends) if sends in self._taken else sends
        self._taken.add(sends)
        place = slice(messages.start, messages.stop)
        self.durations[place] = self._costs.times("send", source, len(messages))
        self.first[place] = made
        line = self.lines.setdefault((sender, receiver, ""), len(self.lines))
        self.link[place] = [line] * len(messages)
        return self._objects[place]

    def _further(self, sends: range) -> range:
        """Numbers for one more message of each of these sending actions."""
        messages = range(len(self.durations), len(self.durations) + len(sends))
        for table, blank in ((self.durations, 0.0), (self.at_start, 0.0), (self.at_end, 0.0)):
            table.extend([blank] * len(sends))
        for numbers in (self.first, self.second, self.link):
            numbers.extend([-1] * len(sends))
        self.copied.extend(sends)
        self._objects.extend(messages)
        for send, message in zip(sends, messages, strict=True):
            self._copies[send] = (*self._copies.get(send, ()), message)
        return messages

    def _last_of(self, numbers: range, rank: int) -> int:
        """The last of these actions in the program of a rank; -1 when none is there."""
        for number in reversed(self._programs.ranks[rank]):
            for single in self.parts.get(number, (number,)):
                if single in numbers:
                    return single
        return -1

    def _fill_extras(self, operations: Mapping[str, Operation]) -> None:
        for number, action in enumerate(self._numbering.extras, self._numbering.base):
            operation, parts = operations.get(action.kind), self.parts.get(number, ())
            if operation:
                self._fill_operation(number, action, operation)
            elif parts and not (self._costs.FB is not None or self._costs.overlap or self._costs.lanes):
                self.durations[number] = sum([self.durations[part] for part in parts])
            else:
                self.durations[number] = self._costs.duration(action)
        # Behind the operations, which change what a backward gives back.
        for number, parts in self.parts.items():
            for part in parts:
                self.at_start[number] += self.at_start[part]
                self.at_end[number] += self.at_end[part]

    def _fill_operation(self, number: int, action: Action, operation: Operation) -> None:
        costs, stage = self._costs, action.stage
        self.durations[number] = operation.time_of(stage, action.microbatch or 0, costs)
        self._change_memory(number, action, operation.memory * costs.activation_of(stage))
        if operation.resource == "compute":
            return
        rank = self._placement.rank_of[stage]
        self.link[number] = self.lines.setdefault((rank, rank, operation.resource), len(self.lines))
        # What it follows has ended when the rank comes to it; what it precedes has to wait.
        microbatches = range(self._numbering.microbatches) if action.microbatch is None else [action.microbatch]
        for kind in operation.anchors if operation.before else ():
            for single in (self._numbers(kind, stage)[microbatch] for microbatch in microbatches):
                self.more[single] = (*self.more.get(single, ()), number)
                self.link[single] = GROUP

    def _change_memory(self, number: int, action: Action, change: float) -> None:
        """Let an operation take or give back memory; the backward gives back what is then kept."""
        if not change or self._is_forward_only:
            return
        (self.at_start if change > 0 else self.at_end)[number] = change
        for_weight = self._costs.kept_for_weight_of(action.stage)
        for kind, share in (("B", 1.0), ("I", 1.0 - for_weight), ("W", for_weight)):
            self.at_end[self._numbers(kind, action.stage)[action.microbatch or 0]] -= change * share

    @cached_property
    def _is_forward_only(self) -> bool:
        block = self._numbering.block
        singles = (single for program in self._programs.ranks for n in program for single in self.parts.get(n, (n,)))
        return not any(block <= single < len(COMPUTE) * block for single in singles)

    def _with_messages(self) -> list[list[int]]:
        """The programs with sends where they are or, when there are none, where results are made; no receives."""
        programs, numbering = self._programs.ranks, self._numbering
        start, end = numbering.first("SEND_F"), numbering.base
        if any(start <= number < end for program in programs for number in program):
            stays = [True] * numbering.size
            for kind in ("RECV_F", "RECV_B"):
                received = numbering.first(kind)
                stays[received : received + numbering.block] = [False] * numbering.block
            found = [[number for number in program if stays[number]] for program in programs]
        else:
            found = [self._implied(program) for program in programs]
        return [self._all_messages(program) for program in found] if self._copies else found

    def _implied(self, program: Sequence[int]) -> list[int]:
        after = self._sent_after
        found: list[int] = []
        for number in program:
            found.append(number)
            if number < len(after):
                if after[number] >= 0:
                    found.append(after[number])
            else:
                sends = [after[part] for part in self.parts.get(number, ())]
                found += [send for send in sends if send >= 0]
        return found

    @cached_property
    def _sent_after(self) -> list[int]:
        """For F, B and I the sending action of their result; -1 where no other rank needs it."""
        after = [-1] * (len(COMPUTE) * self._numbering.block)
        for stage in range(self._placement.stages):
            for kind, makers in (("SEND_F", "F"), ("SEND_B", "BI")):
                sends = self._numbers(kind, stage)
                if sends in self._taken:
                    for maker in makers:
                        made = self._numbers(maker, stage)
                        after[made.start : made.stop] = self._objects[sends.start : sends.stop]
        return after

    def _all_messages(self, program: Iterable[int]) -> list[int]:
        return [message for number in program for message in (number, *self._copies.get(number, ()))]
