"""How much a rank may hold at once, and how much of that must stay free so that what is begun can be finished."""

from annopipe.scheduling.rules import Rules

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
        self.unlimited = self._count_limit is None and self._memory_limit is None
        self._activation = rules.activation
        self._freed_by_input = rules.freed_by_input
        self._copy = placement.copy_of
        self._m = rules.microbatches
        self._count = 0
        self._held = 0.0
        # By copy: what the forwards of a microbatch that are still to come need, by how many they are.
        self._needs: list[list[float]] = []
        self._chunks: list[int] = []
        for copy in range(placement.copies):
            own = sorted((s for s in stages if placement.copy_of[s] == copy), key=lambda s: placement.chunk_of[s])
            needs = [0.0]
            for stage in reversed(own):
                needs.append(needs[-1] + rules.activation[stage])
            self._needs.append(needs)
            self._chunks.append(len(own))
        # By copy: how many of the microbatches that have begun lack how many forwards.
        self._lacking = [[0] * (chunks + 1) for chunks in self._chunks]
        self._forwards: dict[tuple[int, int], int] = {}
        self._open: dict[tuple[int, int], int] = {}

    def allows(self, stage: int, microbatch: int, freed: int = -1) -> bool:
        """Whether a forward may start; `freed` is the stage whose full backward runs in the same combination."""
        if self.unlimited:
            return True
        copy = self._copy[stage]
        done = self._forwards.get((copy, microbatch), 0)
        chunks = self._chunks[copy]
        least = chunks - done - 1
        lacking = self._lacking[copy]
        need_count, need_memory = least, self._needs[copy][least]
        for other, counts in enumerate(self._lacking):
            smallest = next((n for n, number in enumerate(counts) if number), None)
            if smallest is not None and (other != copy or smallest <= least or lacking is not counts):
                need_count = min(need_count, smallest)
                need_memory = min(need_memory, self._needs[other][smallest])
        if self._count_limit is not None and self._count_limit - self._count - 1 + (freed >= 0) < need_count:
            return False
        if self._memory_limit is None:
            return True
        room = self._memory_limit - self._held - self._activation[stage]
        return room + (self._activation[freed] if freed >= 0 else 0.0) + _ROUNDING >= need_memory

    def reason(self) -> str:
        """What the limits are, for a message about a forward that they refuse."""
        limits = []
        if self._count_limit is not None:
            limits.append(f"{self._count} of {self._count_limit} in flight")
        if self._memory_limit is not None:
            limits.append(f"{self._held:g} of {self._memory_limit:g} memory held")
        return f"over the limit: {', '.join(limits)}, and what is begun must be finished"

    def start_forward(self, stage: int, microbatch: int) -> None:
        """Account for a forward that starts."""
        self._count += 1
        self._held += self._activation[stage]
        copy = self._copy[stage]
        key = (copy, microbatch)
        done = self._forwards.get(key, 0)
        lacking = self._lacking[copy]
        if done:
            lacking[self._chunks[copy] - done] -= 1
        lacking[self._chunks[copy] - done - 1] += 1
        self._forwards[key] = done + 1

    def end_backward(self, stage: int, microbatch: int, *, full: bool) -> None:
        """Account for a B or an I that ended."""
        self._count -= 1
        self._held -= self._activation[stage] * (1.0 if full else self._freed_by_input)
        copy = self._copy[stage]
        key = (copy, microbatch)
        ended = self._open.get(key, 0) + 1
        if ended < self._chunks[copy]:
            self._open[key] = ended
            return
        self._open.pop(key, None)
        self._lacking[copy][0] -= 1
        del self._forwards[key]

    def end_weight(self, stage: int) -> None:
        """Account for a W that ended."""
        self._held -= self._activation[stage] * (1.0 - self._freed_by_input)
