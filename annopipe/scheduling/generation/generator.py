"""The actor-aware generator: each rank, as it becomes free, takes the best ready action by the rules.

An event simulation in whole ticks. At each moment first everything that ends or arrives is taken in, then every rank
that is free decides, rank by rank: so the result does not depend on the order in which events are found.
"""

import heapq

from annopipe.errors import ScheduleError
from annopipe.scheduling.actions import overlap
from annopipe.scheduling.generation.explaining import Decision
from annopipe.scheduling.generation.limits import Begun
from annopipe.scheduling.generation.rank_state import RankState
from annopipe.scheduling.generation.rules import Rules
from annopipe.scheduling.generation.ticks import Tick
from annopipe.scheduling.numbering import Numbering

__all__ = ["Generator"]

Chosen = tuple[int, ...]


class Generator:
    """One run of the rules; `watch` is a (rank, step) whose decision is kept."""

    def __init__(self, rules: Rules, watch: tuple[int, int] | None = None) -> None:
        placement, m = rules.placement, rules.microbatches
        self.decision: Decision | None = None
        self._rules, self._watch = rules, watch
        self._m, self._block = m, placement.stages * m
        self._numbering = Numbering(placement.stages, m)
        self._rank_of = placement.rank_of
        self._programs: list[list[Chosen]] = [[] for _ in range(placement.ranks)]
        self._running: list[Chosen] = [()] * placement.ranks
        self._events: list[tuple[Tick, int]] = []
        self._touched: set[int] = set()  # ranks for which something changed at this moment
        begun = Begun(rules)
        self._ranks = [RankState(rules, rank, begun) for rank in range(placement.ranks)]
        self._before_forward = [len(before) for before in placement.predecessors for _ in range(m)]
        # A backward waits for the forward of its own stage and the backwards behind it.
        self._before_backward = [len(after) + 1 for after in placement.successors for _ in range(m)]
        # Where the loss needs the whole batch, all backwards wait for the last forward of the stage.
        self._before_loss = {stage: len(placement.microbatches_of(stage, m)) for stage in placement.batch_wide}

    def run(self) -> list[list[Chosen]]:
        """The numbers of every rank; a combination is a tuple of two.

        Raises ScheduleError when a limit leaves no rank anything to do.
        """
        placement = self._rules.placement
        for stage, before in enumerate(placement.predecessors):
            if not before:
                for microbatch in placement.microbatches_of(stage, self._m):
                    self._ranks[self._rank_of[stage]].forward_ready(stage * self._m + microbatch)
        for rank in range(placement.ranks):
            self._decide(rank, 0)
        events = self._events
        while events:
            now = events[0][0]
            self._touched.clear()
            while events and events[0][0] == now:
                self._happen(now, heapq.heappop(events)[1])
            for rank in sorted(self._touched):
                if not self._running[rank]:
                    self._decide(rank, now)
        self._refuse_unfinished()
        return self._programs

    def _happen(self, now: Tick, code: int) -> None:
        """Take in an event: a rank (0 and above) ends what it runs, or a message (below 0) arrives."""
        if code >= 0:
            ended = self._running[code]
            self._running[code] = ()
            self._touched.add(code)
            for number in ended:
                self._end(now, code, number)
        else:
            self._arrive(-1 - code)

    def _end(self, now: Tick, rank: int, number: int) -> None:
        kind, pair = divmod(number, self._block)
        stage, microbatch = divmod(pair, self._m)
        state, placement = self._ranks[rank], self._rules.placement
        if kind == 0:
            for after in placement.successors[stage]:
                self._send(now, rank, pair, after * self._m + microbatch)
            if self._rules.has_backward:
                self._forward_ended(stage, pair)
        elif kind == 3:
            state.limits.end_weight(stage)
        else:
            for before in placement.predecessors[stage]:
                self._send(now, rank, pair, self._block + before * self._m + microbatch)
            state.limits.end_backward(stage, microbatch, full=kind == 1)
            if kind == 2:
                state.weights.append(pair)

    def _forward_ended(self, stage: int, pair: int) -> None:
        if stage not in self._before_loss:
            self._backward_input(pair)
            return
        self._before_loss[stage] -= 1
        if not self._before_loss[stage]:
            for microbatch in self._rules.placement.microbatches_of(stage, self._m):
                self._backward_input(stage * self._m + microbatch)

    def _send(self, now: Tick, rank: int, pair: int, number: int) -> None:
        """Hand what a stage made of a microbatch to the forward (F) or the backward (B) that takes it."""
        receiver = self._rank_of[number % self._block // self._m]
        delay = self._rules.times.delays[pair]
        if delay and receiver != rank:
            heapq.heappush(self._events, (now + delay, -1 - number))
        else:
            self._arrive(number)

    def _arrive(self, number: int) -> None:
        if number >= self._block:
            self._backward_input(number - self._block)
            return
        self._before_forward[number] -= 1
        if not self._before_forward[number]:
            rank = self._rank_of[number // self._m]
            self._ranks[rank].forward_ready(number)
            self._touched.add(rank)

    def _backward_input(self, pair: int) -> None:
        self._before_backward[pair] -= 1
        if not self._before_backward[pair]:
            stage = pair // self._m
            rank = self._rank_of[stage]
            self._ranks[rank].backward_ready(pair, split=self._rules.split[stage])
            self._touched.add(rank)

    def _decide(self, rank: int, now: Tick) -> None:
        state, rules = self._ranks[rank], self._rules
        chosen, reason = state.choose()
        if not chosen:
            return
        if self._watch == (rank, len(self._programs[rank])):
            actions = [self._numbering.action(number) for number in chosen]
            text = str(overlap(*actions) if len(actions) > 1 else actions[0])
            time = rules.times.seconds(now)
            self.decision = Decision(*self._watch, time, text, reason, tuple(state.candidates(chosen)))
        state.take(chosen)
        self._programs[rank].append(chosen)
        self._running[rank] = chosen
        duration = rules.times.durations[chosen[0]] if len(chosen) == 1 else rules.times.combined(*chosen)
        heapq.heappush(self._events, (now + duration, rank))

    def _refuse_unfinished(self) -> None:
        stuck = [
            (rank, found) for rank, state in enumerate(self._ranks) for found in state.candidates() if found.refused
        ]
        if stuck:
            # A limit says more than a strict order that waits for it.
            rank, found = min(stuck, key=lambda place: not place[1].refused.startswith("over"))
            raise ScheduleError(
                f"rank {rank} stops at step {len(self._programs[rank])}: {found.action} is ready and {found.refused}, "
                "and no other rank can go on; raise the limit or change the order"
            )
