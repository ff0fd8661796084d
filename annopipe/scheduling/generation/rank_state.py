"""What one rank could do now, and which of it the rules prefer."""

import heapq
from collections import deque
from collections.abc import Iterator

from annopipe.scheduling.actions import COMPUTE
from annopipe.scheduling.generation.explaining import Candidate
from annopipe.scheduling.generation.limits import Begun, Pair, RankLimits
from annopipe.scheduling.generation.rules import Rules
from annopipe.scheduling.numbering import Numbering

__all__ = ["RankState"]

_F, _B, _I, _W = range(4)


class RankState:
    """The ready actions of one rank, as turns: positions in the rank's order of forwards, or of backwards.

    Forwards wait in one heap per stage, because a limit can refuse a stage and let another pass; backwards in one heap
    per kind, as full ones when they are split only for want of a partner; weight gradients in the order in which their
    inputs were computed.
    """

    def __init__(self, rules: Rules, rank: int, begun: Begun) -> None:
        placement, self._m = rules.placement, rules.microbatches
        self._block = placement.stages * self._m
        self._numbering = Numbering(placement.stages, self._m)
        self.limits = RankLimits(rules, rank, begun)
        self._copy_of = placement.copy_of
        self.weights: deque[int] = deque()
        self._orders = rules.forward_order[rank], rules.backward_order[rank]
        self._forward_turn, self._backward_turn = rules.forward_turn, rules.backward_turn
        self._forwards: dict[int, list[int]] = {stage: [] for stage in placement.stages_on[rank]}
        self._backwards: dict[int, list[int]] = {_B: [], _I: []}
        self._strict = rules.strict[rank]
        self._strict_done = 0
        self._strict_kinds = {COMPUTE.index(kind) for kind in rules.strict_kinds}
        # What has a strict order comes first, and fits in between as it must wait.
        urgent = sorted(rules.priority, key=lambda kind: kind not in rules.strict_kinds)
        self._order = [COMPUTE.index(kind) for kind in urgent]
        self._partner = COMPUTE.index(rules.pair[1]) if rules.pair else -1
        self._unpaired = rules.unpaired

    def forward_ready(self, pair: int) -> None:
        """The inputs of a forward have arrived."""
        heapq.heappush(self._forwards[pair // self._m], self._forward_turn[pair])

    def backward_ready(self, pair: int, *, split: bool) -> None:
        """What a backward waits for is there."""
        heapq.heappush(self._backwards[_I if split else _B], self._backward_turn[pair])

    def choose(self) -> tuple[tuple[int, ...], str]:
        """The numbers to run now and why; () when nothing may run."""
        if self._partner >= 0:
            both = self._best_pair()
            if both:
                return both, "both are ready, and the rules pair them"
        for kind in self._order:
            number = self._best(kind)
            if number >= 0:
                if kind == _B and self._unpaired:
                    return (
                        number + self._block,
                    ), "B is the most urgent kind that may run; without a partner it is split"
                if kind in self._strict_kinds:
                    return (number,), "it is the next in the strict order"
                return (number,), f"{COMPUTE[kind]} is the most urgent kind that may run; it is its turn"
        return (), ""

    def take(self, chosen: tuple[int, ...]) -> None:
        """Remove what was chosen from what is ready."""
        for number in chosen:
            kind, pair = divmod(number, self._block)
            waited = _B if kind == _I and self._unpaired else kind
            if kind == _F:
                self._remove(self._forwards[pair // self._m], self._forward_turn[pair])
                self.limits.start_forward(*divmod(pair, self._m))
            elif kind == _W:
                self.weights.remove(pair)
            else:
                self._remove(self._backwards[waited], self._backward_turn[pair])
            if waited * self._block + pair == self._next_strict():
                self._strict_done += 1

    def candidates(self, chosen: tuple[int, ...] = ()) -> list[Candidate]:
        """Everything that is ready, as it would be taken, with what refuses it if it is not chosen."""
        return sorted(self._candidates(chosen))

    def _candidates(self, chosen: tuple[int, ...]) -> Iterator[Candidate]:
        urgency = {kind: position for position, kind in enumerate(self._order)}
        expected = self._next_strict()
        for kind, turns in self._ready():
            for turn, pair in turns:
                number = kind * self._block + pair
                refused = ""
                if number in chosen:
                    pass
                elif kind in self._strict_kinds and number != expected:
                    refused = f"must wait: {self._numbering.text(expected)} is next in the strict order"
                elif kind == _F and not self.limits.allows(*divmod(pair, self._m)):
                    refused = self.limits.reason(pair // self._m)
                yield Candidate(urgency[kind], turn, self._numbering.text(number), refused)

    def _ready(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        forwards, backwards = self._orders
        yield _F, [(turn, forwards[turn]) for heap in self._forwards.values() for turn in heap]
        for kind, heap in self._backwards.items():
            yield kind, [(turn, backwards[turn]) for turn in heap]
        yield _W, list(enumerate(self.weights))

    def _next_strict(self) -> int:
        return self._strict[self._strict_done] if self._strict_done < len(self._strict) else -1

    def _best_pair(self) -> tuple[int, ...]:
        partner = self._best(self._partner)
        if partner < 0:
            return ()
        freed = divmod(partner % self._block, self._m) if self._partner != _W else None
        forward = self._best(_F, freed)
        return (forward, partner) if forward >= 0 else ()

    def _best(self, kind: int, freed: Pair | None = None) -> int:
        """The number of the ready action of a kind whose turn is first among those allowed; -1 when there is none."""
        if kind in self._strict_kinds:
            number = self._next_strict()
            return number if number // self._block == kind and self._may_run(number, freed) else -1
        if kind == _W:
            return _W * self._block + self.weights[0] if self.weights else -1
        if kind != _F:
            heap = self._backwards[kind]
            return kind * self._block + self._orders[1][heap[0]] if heap else -1
        best = -1
        for heap in self._forwards.values():
            if heap and (best < 0 or heap[0] < best):
                turn = self._first_allowed(heap, freed)
                if turn >= 0 and (best < 0 or turn < best):
                    best = turn
        return self._orders[0][best] if best >= 0 else -1

    def _first_allowed(self, heap: list[int], freed: Pair | None) -> int:
        """The first turn that may run. Microbatches that have not begun are alike: all may run or none."""
        first = self._orders[0][heap[0]]
        stage = first // self._m
        if self.limits.allows(stage, first % self._m, freed):
            return heap[0]
        copy = self._copy_of[stage]
        begun = sorted(self._forward_turn[stage * self._m + k] for other, k in self.limits.begun() if other == copy)
        waiting = set(heap)
        for turn in begun:
            if turn in waiting and self.limits.allows(stage, self._orders[0][turn] % self._m, freed):
                return turn
        return -1

    def _may_run(self, number: int, freed: Pair | None) -> bool:
        kind, pair = divmod(number, self._block)
        if kind == _W:
            return pair in self.weights
        if kind != _F:
            return self._backward_turn[pair] in self._backwards[kind]
        ready = self._forward_turn[pair] in self._forwards[pair // self._m]
        return ready and self.limits.allows(*divmod(pair, self._m), freed)

    @staticmethod
    def _remove(heap: list[int], turn: int) -> None:
        if heap[0] == turn:
            heapq.heappop(heap)
        else:
            heap.remove(turn)
            heapq.heapify(heap)
