"""What one rank could do now, and which of it the rules prefer."""

import heapq
from collections import deque
from collections.abc import Iterator

from annopipe.scheduling.actions import COMPUTE
from annopipe.scheduling.generation.explaining import Candidate
from annopipe.scheduling.generation.limits import RankLimits
from annopipe.scheduling.generation.rules import Rules
from annopipe.scheduling.numbering import Numbering

__all__ = ["RankState"]

_F, _B, _I, _W = range(4)


class RankState:
    """The ready actions of one rank, as turns: positions in the rank's order of forwards, or of backwards.

    Forwards wait in one heap per stage, because a limit can refuse a stage and let another pass; backwards in one heap
    per kind; weight gradients in the order in which their inputs were computed.
    """

    def __init__(self, rules: Rules, rank: int) -> None:
        placement, self._m = rules.placement, rules.microbatches
        self._block = placement.stages * self._m
        self._numbering = Numbering(placement.stages, self._m)
        self._rules = rules
        self.limits = RankLimits(rules, rank)
        self.weights: deque[int] = deque()
        self._orders = rules.forward_order[rank], rules.backward_order[rank]
        self._forward_turn, self._backward_turn = rules.forward_turn, rules.backward_turn
        self._forwards: dict[int, list[int]] = {stage: [] for stage in placement.stages_on[rank]}
        self._backwards: dict[int, list[int]] = {_B: [], _I: []}
        self._priority = [COMPUTE.index(kind) for kind in rules.priority]
        self._strict = rules.strict[rank]
        self._next_strict = 0
        self._strict_kinds = {number // self._block for number in self._strict}
        self._pair = tuple(COMPUTE.index(kind) for kind in rules.pair) if rules.pair else ()

    def forward_ready(self, pair: int) -> None:
        """The inputs of a forward have arrived."""
        heapq.heappush(self._forwards[pair // self._m], self._forward_turn[pair])

    def backward_ready(self, pair: int, *, split: bool) -> None:
        """What a backward waits for is there."""
        heapq.heappush(self._backwards[_I if split else _B], self._backward_turn[pair])

    def choose(self) -> tuple[tuple[int, ...], str]:
        """The numbers to run now and why; () when nothing may run."""
        if self._pair:
            both = self._best_pair()
            if both:
                return both, "both are ready, and the rules pair them"
        if self._next_strict < len(self._strict):
            number = self._strict[self._next_strict]
            if self._may_run(number):
                return (number,), "it is the next in the strict order"
        for kind in self._priority:
            if kind in self._strict_kinds:
                continue
            number = self._best(kind)
            if number >= 0:
                return (
                    self._unpaired(number),
                ), f"{COMPUTE[kind]} is the most urgent kind that may run; it is its turn"
        return (), ""

    def take(self, chosen: tuple[int, ...]) -> None:
        """Remove what was chosen from what is ready."""
        for number in chosen:
            kind, pair = divmod(number, self._block)
            if kind == _F:
                self._remove(self._forwards[pair // self._m], self._forward_turn[pair])
                self.limits.start_forward(*divmod(pair, self._m))
            elif kind == _W:
                self.weights.remove(pair) if self.weights[0] != pair else self.weights.popleft()
            else:
                turn = self._backward_turn[pair]
                heap = self._backwards[kind]
                # An unpaired backward is split when it is taken, and waited as a full one.
                self._remove(heap if turn in heap else self._backwards[_B], turn)
            if self._next_strict < len(self._strict) and number == self._strict[self._next_strict]:
                self._next_strict += 1

    def candidates(self) -> list[Candidate]:
        """Everything that is ready, with what refuses it."""
        return list(self._candidates())

    def _candidates(self) -> Iterator[Candidate]:
        urgency = {kind: position for position, kind in enumerate(self._priority)}
        expected = self._strict[self._next_strict] if self._next_strict < len(self._strict) else -1
        for kind, turns in self._ready():
            for turn, pair in turns:
                number = kind * self._block + pair
                refused = ""
                if kind in self._strict_kinds and number != expected:
                    refused = f"must wait: {self._numbering.text(expected)} is next in the strict order"
                elif kind == _F and not self.limits.allows(*divmod(pair, self._m)):
                    refused = self.limits.reason()
                yield Candidate(urgency[kind], turn, self._numbering.text(number), refused)

    def _ready(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        forwards, backwards = self._orders
        yield _F, sorted((turn, forwards[turn]) for heap in self._forwards.values() for turn in heap)
        for kind, heap in self._backwards.items():
            yield kind, sorted((turn, backwards[turn]) for turn in heap)
        yield _W, list(enumerate(self.weights))

    def _best_pair(self) -> tuple[int, ...]:
        partner = self._best(self._pair[1])
        if partner < 0:
            return ()
        stage = partner % self._block // self._m
        forward = self._best(_F, freed=stage if self._pair[1] == _B else -1)
        return (forward, partner) if forward >= 0 else ()

    def _best(self, kind: int, freed: int = -1) -> int:
        """The number of the ready action of a kind whose turn is first among those allowed; -1 when there is none."""
        if kind == _W:
            return _W * self._block + self.weights[0] if self.weights else -1
        if kind != _F:
            heap = self._backwards[kind]
            return kind * self._block + self._orders[1][heap[0]] if heap else -1
        best = -1
        for heap in self._forwards.values():
            if heap and (best < 0 or heap[0] < best):
                pair = self._orders[0][heap[0]]
                if self.limits.allows(*divmod(pair, self._m), freed):
                    best = heap[0]
        return self._orders[0][best] if best >= 0 else -1

    def _may_run(self, number: int) -> bool:
        kind, pair = divmod(number, self._block)
        if kind == _F:
            return self._forward_turn[pair] in self._forwards[pair // self._m] and self.limits.allows(
                *divmod(pair, self._m)
            )
        if kind == _W:
            return pair in self.weights
        return self._backward_turn[pair] in self._backwards[kind]

    def _unpaired(self, number: int) -> int:
        kind, pair = divmod(number, self._block)
        return _I * self._block + pair if kind == _B and self._rules.unpaired else number

    @staticmethod
    def _remove(heap: list[int], turn: int) -> None:
        if heap[0] == turn:
            heapq.heappop(heap)
        else:
            heap.remove(turn)
            heapq.heapify(heap)
