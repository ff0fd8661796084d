"""How much a rank may hold at once, and how much of that must stay free so that what is begun can be finished."""

from annopipe.scheduling.generation.rules import Rules

__all__ = ["Begun", "RankLimits"]

# Sums of activations are compared with a limit that may be the sum itself.
_ROUNDING = 1e-9
_UNLIMITED = float("inf")

Pair = tuple[int, int]  # stage and microbatch


class Begun:
    """The microbatches that have begun anywhere, the oldest first; all ranks share it.

    A microbatch is (copy of the model, number).
    """

    def __init__(self, rules: Rules) -> None:
        self.copy_of = rules.placement.copy_of
        self.order: list[Pair] = []
        self._known: set[Pair] = set()

    def add(self, stage: int, number: int) -> None:
        """Note that a forward starts."""
        microbatch = self.copy_of[stage], number
        if microbatch not in self._known:
            self._known.add(microbatch)
            self.order.append(microbatch)


class RankLimits:
    """The limits of one rank of a generated schedule.

    A microbatch that has begun needs room for its forwards on every rank before any of its backwards can run. So a
    forward may start only if afterwards the microbatches that have begun can be finished here in the order of their
    age: each with the room that is left, and then giving back what it holds (the banker's rule). The order is the same
    on all ranks, so that the oldest can always go on, and then the next. (Where all microbatches need equally much of
    a rank. Two copies of the model that do not can hold each other up, and so can limits per stage and strict orders.)
    """

    def __init__(self, rules: Rules, rank: int, begun: Begun | None = None) -> None:
        stages = rules.placement.stages_on[rank]
        count, memory = rules.in_flight[rank], rules.memory[rank]
        self._count_limit = _UNLIMITED if count is None else count
        self._memory_limit = _UNLIMITED if memory is None else memory * (1.0 + _ROUNDING)
        self._stage_limits = {s: limit for s in stages if (limit := rules.stage_in_flight[s]) is not None}
        of_rank = count is not None or memory is not None
        # Without a backward, a forward holds nothing when it has ended.
        self.unlimited = not rules.has_backward or not (of_rank or self._stage_limits)
        self._activation = rules.activation
        self._freed_by_input = rules.freed_by_input
        self._count = 0
        self._held = 0.0
        self._of_stage = dict.fromkeys(stages, 0)
        keeps_room = len(stages) > 1 and of_rank and not self.unlimited
        # With one stage a microbatch that has begun here needs no further room.
        self._begun = begun if begun is not None else Begun(rules)
        self._room = _Room(rules, stages, self._begun) if keeps_room else None

    def allows(self, stage: int, microbatch: int, freed: Pair | None = None) -> bool:
        """Whether a forward may start; `freed` is the B or I that runs in the same combination.

        What a combination frees is there when it has ended: it counts for what is in flight then, not for memory.
        """
        if self.unlimited:
            return True
        limit = self._stage_limits.get(stage)
        if limit is not None and self._of_stage[stage] - (freed is not None and freed[0] == stage) >= limit:
            return False
        count = self._count_limit - self._count - 1 + (freed is not None)
        memory = self._memory_limit - self._held - self._activation[stage]
        if count < 0 or memory < 0.0:
            return False
        return self._room is None or self._room.is_enough((stage, microbatch), freed, count, memory)

    def begun(self) -> list[Pair]:
        """The microbatches, (copy, number), that may start a forward where those that have not begun may not."""
        return self._room.unfinished() if self._room else []

    def reason(self, stage: int) -> str:
        """What the limits are, for a message about a forward of a stage that they refuse."""
        limits = []
        if stage in self._stage_limits:
            limits.append(f"{self._of_stage[stage]} of {self._stage_limits[stage]} of stage {stage} in flight")
        if self._count_limit < _UNLIMITED:
            limits.append(f"{self._count} of {self._count_limit} in flight")
        if self._memory_limit < _UNLIMITED:
            limits.append(f"{self._held:g} of {self._memory_limit:g} memory held")
        return f"over the limit: {', '.join(limits)}; what is begun must be finished"

    def start_forward(self, stage: int, microbatch: int) -> None:
        """Account for a forward that starts."""
        self._count += 1
        self._of_stage[stage] += 1
        self._held += self._activation[stage]
        self._begun.add(stage, microbatch)
        if self._room:
            self._room.start_forward((stage, microbatch))

    def end_backward(self, stage: int, microbatch: int, *, full: bool) -> None:
        """Account for a B or an I that ended."""
        self._count -= 1
        self._of_stage[stage] -= 1
        self._held -= self._activation[stage] * (1.0 if full else self._freed_by_input[stage])
        if self._room:
            self._room.end_backward((stage, microbatch))

    def end_weight(self, stage: int) -> None:
        """Account for a W that ended."""
        self._held -= self._activation[stage] * (1.0 - self._freed_by_input[stage])


Amount = tuple[int, float]  # forwards, and the memory that they take


class _Room:
    """What the microbatches that have begun hold on a rank with several stages, and what they still need there.

    What W holds until it runs is counted as held by nobody: W runs whenever there is nothing better to do.
    """

    def __init__(self, rules: Rules, stages: tuple[int, ...], begun: Begun) -> None:
        self._activation, self._begun = rules.activation, begun
        # By copy: all forwards of a microbatch on this rank.
        self._all: list[Amount] = [(0, 0.0)] * rules.placement.copies
        for stage in stages:
            copy = begun.copy_of[stage]
            self._all[copy] = _add(self._all[copy], 1, rules.activation[stage])
        # With this much room, any microbatch can be finished.
        self._enough = max(self._all)[0], max(size for _, size in self._all)
        self._lacks: dict[Pair, Amount] = {}
        self._holds: dict[Pair, Amount] = {}
        self._finished = 0  # so many of the oldest lack and hold nothing here any more

    def is_enough(self, forward: Pair, freed: Pair | None, count: float, memory: float) -> bool:
        """Whether there is room when the forward has started and `freed` has ended, as much as is given."""
        order, copy_of = self._begun.order, self._begun.copy_of
        started = copy_of[forward[0]], forward[1]
        ended = (copy_of[freed[0]], freed[1]) if freed is not None else None
        self._skip_finished()
        for place in range(self._finished, len(order)):
            if count >= self._enough[0] and memory >= self._enough[1]:
                return True
            microbatch = order[place]
            lacks, holds = self._lack(microbatch), self._holds.get(microbatch, (0, 0.0))
            if microbatch == started:
                lacks = _add(lacks, -1, -self._activation[forward[0]])
                holds = _add(holds, 1, self._activation[forward[0]])
            if freed is not None and microbatch == ended:
                holds = _add(holds, -1, -self._activation[freed[0]])
            if lacks[0] > count or lacks[1] > memory + _ROUNDING:
                return False
            count, memory = count + holds[0], memory + holds[1]
        return True

    def unfinished(self) -> list[Pair]:
        """The microbatches that have begun and are not finished here, the oldest first."""
        self._skip_finished()
        return self._begun.order[self._finished :]

    def start_forward(self, pair: Pair) -> None:
        microbatch, size = (self._begun.copy_of[pair[0]], pair[1]), self._activation[pair[0]]
        self._lacks[microbatch] = _add(self._lack(microbatch), -1, -size)
        self._holds[microbatch] = _add(self._holds.get(microbatch, (0, 0.0)), 1, size)

    def end_backward(self, pair: Pair) -> None:
        microbatch = self._begun.copy_of[pair[0]], pair[1]
        self._holds[microbatch] = _add(self._holds[microbatch], -1, -self._activation[pair[0]])

    def _lack(self, microbatch: Pair) -> Amount:
        return self._lacks.get(microbatch, self._all[microbatch[0]])

    def _skip_finished(self) -> None:
        order = self._begun.order
        while self._finished < len(order):
            oldest = order[self._finished]
            if self._lack(oldest)[0] or self._holds.get(oldest, (0, 0.0))[0]:
                return
            self._finished += 1


def _add(amount: Amount, forwards: int, size: float) -> Amount:
    return amount[0] + forwards, amount[1] + size
