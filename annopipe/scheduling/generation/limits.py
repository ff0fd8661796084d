"""How much a rank may hold at once, and how much of that must stay free so that what is begun can be finished."""

import math

from annopipe.scheduling.generation.rules import Rules

__all__ = ["RankLimits"]

_ROUNDING = 1e-9


class RankLimits:
    """The limits of one rank of a generated schedule.

    A microbatch that has begun on a rank needs room for the forwards of its further chunks there before any of its
    backwards can run. So a forward may start only if afterwards all that have begun can still finish one after the
    other (the banker's rule): that which needs the least goes first, and gives back its room for the next one.

    A combination takes before it gives back, so that what its backward keeps still counts as memory when its forward
    starts. It is one action in flight for another, though.
    """

    def __init__(self, rules: Rules, rank: int) -> None:
        placement = rules.placement
        stages = placement.stages_on[rank]
        self._count_limit = rules.in_flight[rank]
        self._memory_limit = rules.memory[rank]
        self._stage_limits = {s: limit for s in stages if (limit := rules.stage_in_flight[s]) is not None}
        self.unlimited = self._count_limit is None and self._memory_limit is None and not self._stage_limits
        self._activation = rules.activation
        self._freed_by_input = rules.freed_by_input
        self._count = 0
        self._held = 0.0
        self._of_stage = dict.fromkeys(stages, 0)
        # With one chunk of one copy a microbatch that has begun needs no further room.
        self._begun = _Begun(rules, rank) if len(stages) > 1 else None

    def allows(self, stage: int, microbatch: int, freed: int = -1) -> bool:
        """Whether a forward may start; `freed` is the stage whose full backward runs in the same combination."""
        if self.unlimited:
            return True
        limit = self._stage_limits.get(stage)
        if limit is not None and self._of_stage[stage] - (freed == stage) >= limit:
            return False
        count, memory = self._count + 1 - (freed >= 0), self._held + self._activation[stage]
        if self._count_limit is not None and count > self._count_limit:
            return False
        if self._memory_limit is not None and memory > self._memory_limit + _ROUNDING:
            return False
        return not self._begun or self._begun.can_finish(stage, microbatch, self._count_limit, self._memory_limit)

    def reason(self) -> str:
        """What the limits are, for a message about a forward that they refuse."""
        limits = [
            f"{self._of_stage[stage]} of {limit} of stage {stage} in flight"
            for stage, limit in self._stage_limits.items()
        ]
        if self._count_limit is not None:
            limits.append(f"{self._count} of {self._count_limit} in flight")
        if self._memory_limit is not None:
            limits.append(f"{self._held:g} of {self._memory_limit:g} memory held")
        return f"over the limit: {', '.join(limits)}; what is begun must be finished"

    def start_forward(self, stage: int, microbatch: int) -> None:
        """Account for a forward that starts."""
        self._count += 1
        self._of_stage[stage] += 1
        self._held += self._activation[stage]
        if self._begun:
            self._begun.start_forward(stage, microbatch)

    def end_backward(self, stage: int, microbatch: int, *, full: bool) -> None:
        """Account for a B or an I that ended."""
        self._count -= 1
        self._of_stage[stage] -= 1
        self._held -= self._activation[stage] * (1.0 if full else self._freed_by_input)
        if self._begun:
            self._begun.end_backward(stage, microbatch)

    def end_weight(self, stage: int) -> None:
        """Account for a W that ended."""
        self._held -= self._activation[stage] * (1.0 - self._freed_by_input)


class _Begun:
    """The microbatches that have begun on a rank with several stages, and what they still need there."""

    def __init__(self, rules: Rules, rank: int) -> None:
        placement = rules.placement
        self._copy = placement.copy_of
        # By copy: the memory that the last n forwards of a microbatch need, for every n.
        self._memory: list[list[float]] = []
        self._chunks: list[int] = []
        for copy in range(placement.copies):
            own = [stage for stage in placement.stages_on[rank] if placement.copy_of[stage] == copy]
            memory = [0.0]
            for stage in sorted(own, key=lambda s: -placement.chunk_of[s]):
                memory.append(memory[-1] + rules.activation[stage])
            self._memory.append(memory)
            self._chunks.append(len(own))
        # By copy: how many of the microbatches that have begun lack n forwards, for every n.
        self._lacking = [[0] * (chunks + 1) for chunks in self._chunks]
        self._forwards: dict[tuple[int, int], int] = {}
        self._backwards: dict[tuple[int, int], int] = {}

    def can_finish(self, stage: int, microbatch: int, count_limit: int | None, memory_limit: float | None) -> bool:
        """Whether all that have begun can finish one after the other, when this forward has started."""
        started = self._copy[stage]
        left = self._chunks[started] - self._forwards.get((started, microbatch), 0) - 1
        # Those that lack no forward finish in any case, and leave this much to those that do.
        count, memory = _limit(count_limit), _limit(memory_limit) + _ROUNDING
        waiting = []
        for copy, lacking in enumerate(self._lacking):
            needs, chunks = self._memory[copy], self._chunks[copy]
            for n in range(1, chunks + 1):
                number = lacking[n] + (copy == started) * ((n == left) - (n == left + 1 < chunks))
                if number:
                    held = number * (chunks - n), number * (needs[chunks] - needs[n])
                    count, memory = count - held[0], memory - held[1]
                    waiting.append((n, needs[n], *held))
        while waiting:
            ready = [entry for entry in waiting if entry[0] <= count and entry[1] <= memory]
            if not ready:
                return False
            count += sum(entry[2] for entry in ready)
            memory += sum(entry[3] for entry in ready)
            waiting = [entry for entry in waiting if entry not in ready]
        return True

    def start_forward(self, stage: int, microbatch: int) -> None:
        copy = self._copy[stage]
        done = self._forwards.get((copy, microbatch), 0)
        lacking, chunks = self._lacking[copy], self._chunks[copy]
        if done:
            lacking[chunks - done] -= 1
        lacking[chunks - done - 1] += 1
        self._forwards[copy, microbatch] = done + 1

    def end_backward(self, stage: int, microbatch: int) -> None:
        key = (self._copy[stage], microbatch)
        ended = self._backwards.get(key, 0) + 1
        if ended < self._chunks[key[0]]:
            self._backwards[key] = ended
            return
        self._backwards.pop(key, None)
        self._lacking[key[0]][0] -= 1
        del self._forwards[key]


def _limit(given: float | None) -> float:
    return math.inf if given is None else given
