"""How much a rank may hold at once, and how much of that must stay free so that what is begun can be finished."""

from annopipe.scheduling.generation.rules import Rules

__all__ = ["RankLimits"]

_ROUNDING = 1e-9


class RankLimits:
    """The limits of one rank of a generated schedule.

    A microbatch that has begun on a rank needs room for the forwards of its further chunks there before any of its
    backwards can run. So a forward may start only if afterwards the microbatch that needs the least can still finish
    (the banker's rule): when it has, its room is free for the next one.
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
        need_count, need_memory = self._begun.least_need(stage, microbatch) if self._begun else (0, 0.0)
        if self._count_limit is not None and self._count_limit - self._count - 1 + (freed >= 0) < need_count:
            return False
        if self._memory_limit is None:
            return True
        # A combination holds what its forward takes before its backward gives anything back.
        return self._memory_limit - self._held - self._activation[stage] + _ROUNDING >= need_memory

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

    def least_need(self, stage: int, microbatch: int) -> tuple[int, float]:
        """What the microbatch that needs the least needs, when this forward has started: forwards, and memory."""
        copy = self._copy[stage]
        least = self._chunks[copy] - self._forwards.get((copy, microbatch), 0) - 1
        need_count, need_memory = least, self._memory[copy][least]
        for other, lacking in enumerate(self._lacking):
            smallest = next((n for n, number in enumerate(lacking) if number), None)
            if smallest is not None:
                need_count = min(need_count, smallest)
                need_memory = min(need_memory, self._memory[other][smallest])
        return need_count, need_memory

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
