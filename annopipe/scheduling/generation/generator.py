"""The actor-aware generator: each rank, as it becomes free, takes the best ready action by the rules.

An event simulation in whole ticks. At each moment first everything that ends or arrives is taken in, then every rank
that is free decides, rank by rank: so the result does not depend on the order in which events are found.
"""

import heapq

from annopipe.errors import ScheduleError
from annopipe.scheduling.generation.explaining import Decision
from annopipe.scheduling.generation.rank_state import RankState
from annopipe.scheduling.generation.rules import Rules
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
        self._events: list[tuple[int, int]] = []
        self._touched: set[int] = set()  # ranks for which something changed at this moment
        self._ranks = [RankState(rules, rank) for rank in range(placement.ranks)]
        self._before_forward = [len(before) for before in placement.predecessors for _ in range(m)]
        # A backward waits for the forward of its own stage and the backwards behind it; one whose loss needs the whole
        # batch for the last forward of its stage.
        self._before_backward = [len(after) + 1 for after in placement.successors for _ in range(m)]
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

    def _happen(self, now: int, code: int) -> None:
        """Take in an event: a rank (0 and above) ends what it runs, or a message (below 0) arrives."""
        if code >= 0:
            ended = self._running[code]
            self._running[code] = ()
            self._touched.add(code)
            for number in ended:
                self._end(now, code, number)
        else:
            self._arrive(-1 - code)

    def _end(self, now: int, rank: int, number: int) -> None:
        kind, pair = divmod(number, self._block)
        stage, microbatch = divmod(pair, self._m)
        state, placement = self._ranks[rank], self._rules.placement
        if kind == 0:
            for after in placement.successors[stage]:
                self._send(now, rank, stage, after * self._m + microbatch)
            if self._rules.has_backward:
                self._end_forward(stage, pair)
        elif kind == 3:
            state.limits.end_weight(stage)
        else:
            for before in placement.predecessors[stage]:
                self._send(now, rank, stage, self._block + before * self._m + microbatch)
            state.limits.end_backward(stage, microbatch, full=kind == 1)
            if kind == 2:
                state.weights.append(pair)

    def _end_forward(self, stage: int, pair: int) -> None:
        """Let the backward of the pair go on, or of all pairs where the loss needs the whole batch."""
        if stage not in self._before_loss:
            self._backward_input(pair)
            return
        self._before_loss[stage] -= 1
        if not self._before_loss[stage]:
            for other in self._rules.placement.microbatches_of(stage, self._m):
                self._backward_input(stage * self._m + other)

    def _send(self, now: int, rank: int, stage: int, number: int) -> None:
        """Hand an output of a stage to the forward (F) or the backward (B) that takes it."""
        receiver = self._rank_of[number % self._block // self._m]
        delay = self._rules.delays[stage]
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

    def _decide(self, rank: int, now: int) -> None:
        state, rules = self._ranks[rank], self._rules
        watched = self._watch == (rank, len(self._programs[rank]))
        candidates = state.candidates() if watched else ()
        chosen, reason = state.choose()
        if not chosen:
            return
        state.take(chosen)
        self._programs[rank].append(chosen)
        self._running[rank] = chosen
        time = rules.durations[chosen[0]] if len(chosen) == 1 else rules.combined(*chosen)
        heapq.heappush(self._events, (now + time, rank))
        if watched:
            text = "&".join(map(self._numbering.text, chosen))
            step = len(self._programs[rank]) - 1
            self.decision = Decision(rank, step, rules.seconds(now), text, reason, tuple(sorted(candidates)))

    def _refuse_unfinished(self) -> None:
        for rank, state in enumerate(self._ranks):
            stuck = [candidate for candidate in state.candidates() if candidate.refused]
            if stuck:
                raise ScheduleError(
                    f"rank {rank} stops at step {len(self._programs[rank])}: {stuck[0].action} is ready and "
                    f"{stuck[0].refused}, and no other rank can go on; raise the limit or change the order"
                )
