"""How much a rank may hold at once, and how much of that must stay free so that what is begun can be finished."""

from annopipe.scheduling.generation.rules import Rules
from annopipe.scheduling.placement import Placement

__all__ = ["RankLimits"]

# Sums of activations are compared with a limit that may be the sum itself.
_ROUNDING = 1e-9
_UNLIMITED = float("inf")

Pair = tuple[int, int]  # stage and microbatch


class RankLimits:
    """The limits of one rank of a generated schedule.

    A microbatch that has begun on a rank needs room for the forwards of its further chunks there before any of its
    backwards can run. So a forward may start only if afterwards the microbatches that have begun can all be finished,
    one after the other: each gives its room to the next (the banker's rule).
    """

    def __init__(self, rules: Rules, rank: int) -> None:
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
        # With one chunk a microbatch that has begun needs no further room.
        self._begun = _Begun(rules, stages) if len(stages) > 1 and of_rank and not self.unlimited else None
        # Whether the limits treat all microbatches that wait for one stage alike: those of a chain have the same
        # forwards behind them.
        self.are_alike = self._begun is None or _are_chains(rules.placement)

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
        return self._begun is None or self._begun.can_all_finish((stage, microbatch), freed, count, memory)

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
        if self._begun:
            self._begun.start_forward((stage, microbatch))

    def end_backward(self, stage: int, microbatch: int, *, full: bool) -> None:
        """Account for a B or an I that ended."""
        self._count -= 1
        self._of_stage[stage] -= 1
        self._held -= self._activation[stage] * (1.0 if full else self._freed_by_input)
        if self._begun:
            self._begun.end_backward((stage, microbatch))

    def end_weight(self, stage: int) -> None:
        """Account for a W that ended."""
        self._held -= self._activation[stage] * (1.0 - self._freed_by_input)


# Of a microbatch: its copy of the model, the stages whose forward has started, and those whose backward has ended, as
# bits. Many microbatches are alike in this.
_State = tuple[int, int, int]


class _Begun:
    """The microbatches that have begun on a rank with several stages, what they hold, and what they still need there.

    What W holds until it runs is counted as held by nobody: W runs whenever there is nothing better to do.
    """

    def __init__(self, rules: Rules, stages: tuple[int, ...]) -> None:
        self._activation, self._stages = rules.activation, stages
        self._copy = rules.placement.copy_of
        self._bit = {stage: 1 << position for position, stage in enumerate(stages)}
        self._all = [0] * rules.placement.copies
        for stage in stages:
            self._all[self._copy[stage]] |= self._bit[stage]
        self._amounts: dict[int, tuple[int, float]] = {}
        # What has begun needs one forward less than all.
        self._enough = max(self._amount(bits & ~bit) for bits in self._all for bit in self._bit.values() if bits & bit)
        self._states: dict[Pair, _State] = {}
        self._alike: dict[_State, int] = {}

    def can_all_finish(self, forward: Pair, freed: Pair | None, count: float, memory: float) -> bool:
        """Whether there is room when the forward has started and `freed` has ended, as much as is given."""
        if _fits(self._enough, count, memory):
            return True
        alike = self._alike.copy()
        before = self._state(forward)
        _move(alike, before, self._started(before, forward[0]))
        if freed is not None:
            before = self._state(freed)
            _move(alike, before, self._ended(before, freed[0]))
        left = [(self._needed(state), self._held(state), number) for state, number in alike.items()]
        left.sort(reverse=True)
        while left and not _fits(self._enough, count, memory):
            # The one that needs the least comes first; where memory says otherwise, any that fits.
            place = next((i for i in reversed(range(len(left))) if _fits(left[i][0], count, memory)), -1)
            if place < 0:
                return False
            _, held, number = left.pop(place)
            count += held[0] * number
            memory += held[1] * number
        return True

    def start_forward(self, pair: Pair) -> None:
        before = self._state(pair)
        self._set(pair, before, self._started(before, pair[0]))

    def end_backward(self, pair: Pair) -> None:
        before = self._state(pair)
        self._set(pair, before, self._ended(before, pair[0]))

    def _state(self, pair: Pair) -> _State:
        copy = self._copy[pair[0]]
        return self._states.get((copy, pair[1]), (copy, 0, 0))

    def _set(self, pair: Pair, before: _State, after: _State) -> None:
        _move(self._alike, before, after)
        key = after[0], pair[1]
        self._states[key] = after
        if after[2] == self._all[after[0]]:
            del self._states[key]
            del self._alike[after]

    def _started(self, state: _State, stage: int) -> _State:
        return state[0], state[1] | self._bit[stage], state[2]

    def _ended(self, state: _State, stage: int) -> _State:
        return state[0], state[1], state[2] | self._bit[stage]

    def _needed(self, state: _State) -> tuple[int, float]:
        return self._amount(self._all[state[0]] & ~state[1])

    def _held(self, state: _State) -> tuple[int, float]:
        return self._amount(state[1] & ~state[2])

    def _amount(self, bits: int) -> tuple[int, float]:
        """How many forwards some stages are, and the memory that they take."""
        if bits not in self._amounts:
            found = [self._activation[stage] for stage in self._stages if bits & self._bit[stage]]
            self._amounts[bits] = len(found), sum(found)
        return self._amounts[bits]


def _are_chains(placement: Placement) -> bool:
    """Whether every copy of the model is one chain of stages."""
    near = (*placement.predecessors, *placement.successors)
    return max(map(len, near)) <= 1 and len(placement.edges) == placement.stages - placement.copies


def _move(alike: dict[_State, int], before: _State, after: _State) -> None:
    if before[1]:
        alike[before] -= 1
        if not alike[before]:
            del alike[before]
    alike[after] = alike.get(after, 0) + 1


def _fits(needed: tuple[int, float], count: float, memory: float) -> bool:
    return needed[0] <= count and needed[1] <= memory
