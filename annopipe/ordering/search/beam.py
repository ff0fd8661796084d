"""Beam search: partial orders are extended step by step, and of each length only the most promising are kept.

A partial order is as good as the time by which it can end at best: the work that is left on the thread, the work that
is left on each link, the longest chain behind what may come next. Of two partial orders of the same steps one is
dropped if the other is nowhere later. Steps that no launch waits for (weight gradients) are fillers: they need not
come at any certain time.

Where nothing was cut (``Found.complete``), no order is shorter: a step is only left out as the next one if another
computation would be over before it could begin.
"""

import dataclasses
import enum
import heapq
from collections.abc import Sequence
from typing import Any

from annopipe.ordering.search.deadline import Deadline
from annopipe.ordering.search.steps import Steps, slowed_end

__all__ = ["WEIGHTS", "Beam", "Choices", "Found"]

# key, clock, steps done (bits), leads that may come next, fillers that may, when each link is free, the transfers that
# still move and their ends, work left on the thread, work left on each link, live bytes, their peak, (step, history)
_Partial = tuple[Any, ...]
_NEVER = float("inf")
WEIGHTS = (1.0, 0.5, 0.5)  # of the ends of the thread's work, of the links' work and of the longest chain


class Choices(enum.IntEnum):
    """What may come next. LAUNCHES: a launch if there is one. GAPS: fillers only in gaps, by size. ALL: everything."""

    LAUNCHES = 0
    GAPS = 1
    ALL = 2


@dataclasses.dataclass(frozen=True)
class Found:
    """Orders of steps that a beam ended with, best first, with the seconds and peak bytes of each.

    complete: nothing was cut, so that no other order is shorter than the best of these and the limit given.
    work: how many partial orders were made.
    """

    orders: tuple[tuple[float, int, tuple[int, ...]], ...]
    complete: bool
    work: int


class Beam:
    """The search over one problem's steps; ``run`` it with several widths."""

    def __init__(self, steps: Steps, most_bytes: int | None = None, deadline: Deadline | None = None) -> None:
        self._steps, self._most_bytes, self._deadline = steps, most_bytes, deadline
        self._tails, self._leads = _tails(steps), _leads(steps)
        self._masks = [sum(1 << source for source in earlier) for earlier in steps.before]
        self._slowness = 1.0 + steps.problem.network.interference
        self._memory, self._most_seconds = steps.memory, sum(steps.seconds) + sum(steps.transfer)
        self._value_masks = [sum(1 << user for user in users) for users in steps.memory.users]
        self._used: list[list[int]] = [[] for _ in range(len(steps))]
        for value, users in enumerate(steps.memory.users):
            for user in users:
                self._used[user].append(value)
        self._shortest = _NEVER
        self._weights = WEIGHTS
        self._lean = False
        self._work = 0
        self._inside: frozenset[int] | None = None

    def start(self) -> _Partial:
        """The empty order."""
        steps = self._steps
        first = [i for i in range(len(steps)) if not steps.before[i]]
        moved = [0.0] * steps.links
        for i in range(len(steps)):
            if steps.link[i] >= 0:
                moved[steps.link[i]] += steps.transfer[i]
        leads = tuple(i for i in first if self._leads[i])
        fillers = self._by_size([i for i in first if not self._leads[i]])
        live, idle = steps.memory.inputs, (0.0,) * steps.links
        return 0.0, 0.0, 0, leads, fillers, idle, {}, sum(steps.seconds), tuple(moved), live, live, None

    def run(
        self,
        width: int,
        choices: Choices,
        *,
        shorter_than: float = _NEVER,
        weights: tuple[float, float, float] = WEIGHTS,
        lean: bool = False,
    ) -> Found:
        """The best orders found with at most ``width`` partial orders of each length.

        Args:
            shorter_than: only orders that take less, in seconds.
            weights: of the ends of the thread's work, of the links' work and of the longest chain, beside the latest.
            lean: prefer a low peak of live bytes to a short time.
        """
        self._shortest, self._weights, self._lean, self._inside = shorter_than, weights, lean, None
        return self._run(self.start(), len(self._steps), width, choices)

    def window(self, order: Sequence[int], first: int, last: int, width: int, shorter_than: float) -> Found:
        """Other orders of the steps from ``first`` to ``last`` of an order, behind the steps before these.

        Their seconds are the time by which the whole may end at best; orders of steps left out are not among them.
        """
        self._shortest, self._weights, self._lean, self._inside = shorter_than, WEIGHTS, False, None
        partial = self.start()
        for step in order[:first]:
            partial = self._extended(partial, step, self._start(step, partial[1], partial[6])) or partial
        inside = self._inside = frozenset(order[first:last])
        leads, fillers = (tuple(i for i in ready if i in inside) for ready in (partial[3], partial[4]))
        found = self._run((*partial[:3], leads, fillers, *partial[5:-1], None), last - first, width, Choices.GAPS)
        return dataclasses.replace(found, work=found.work + first)

    def _run(self, partial: _Partial, length: int, width: int, choices: Choices) -> Found:
        self._work, level = 0, [partial]
        complete = choices is Choices.ALL and self._slowness == 1.0
        for _ in range(length):
            level, whole = self._next_level(level, width, choices)
            complete = complete and whole
            if self._deadline is not None and self._deadline.is_over:
                return Found((), False, self._work)
        ended = sorted((max(p[1], *p[5], p[1] + p[7]), p[10], number) for number, p in enumerate(level))
        orders = tuple((seconds, peak, _order(level[number][-1])) for seconds, peak, number in ended)
        return Found(orders, complete, self._work)

    def _next_level(self, level: list[_Partial], width: int, choices: Choices) -> tuple[list[_Partial], bool]:
        """The partial orders with one step more, and whether these are all that need be looked at."""
        kept: dict[int, list[_Partial]] = {}
        whole = True
        for partial in level:
            for step, start in self._options(partial, choices):
                self._work += 1
                extended = self._extended(partial, step, start)
                if extended is None:
                    continue
                others = kept.get(extended[2])
                if others is None:
                    kept[extended[2]] = [extended]
                elif not any(_no_later(other, extended) for other in others):
                    kept[extended[2]] = [o for o in others if not _no_later(extended, o)] + [extended]
        every = [partial for same in kept.values() for partial in same]
        if len(every) > width:
            whole = False
            every = heapq.nsmallest(width, every, key=_key)
        return every, whole

    def _options(self, partial: _Partial, choices: Choices) -> list[tuple[int, float]]:
        """The steps that may come next, each with its earliest start."""
        clock, over, seconds, link = partial[1], partial[6], self._steps.seconds, self._steps.link
        starts: list[tuple[int, float]] = []
        first_end = first_start = _NEVER
        for i in partial[3]:
            start = self._start(i, clock, over)
            starts.append((i, start))
            first_start = min(first_start, start)
            if link[i] < 0:
                first_end = min(first_end, start + seconds[i])
        if choices is Choices.LAUNCHES:
            launches = [(i, start) for i, start in starts if link[i] >= 0 and start <= clock]
            if launches:
                return launches
        arrived = [i for i in partial[4] if self._start(i, clock, over) <= clock]
        if arrived and not starts and self._most_bytes is None and all(end <= clock for end in over.values()):
            return [(arrived[0], clock)]  # only work that can go in any sequence is left
        if choices is not Choices.ALL:
            arrived = self._best_fitting(arrived, first_start - clock)
        for i in arrived:
            first_end = min(first_end, clock + seconds[i])
        found = [(i, start) for i, start in starts if start < first_end or start <= clock]
        found += [(i, clock) for i in arrived]
        if partial[4] and (choices is Choices.ALL or not found):
            late = sorted((self._start(i, clock, over), i) for i in partial[4] if i not in arrived)
            found += [(i, start) for start, i in late[: None if choices is Choices.ALL else 1] if start < first_end]
        return found

    def _best_fitting(self, fillers: Sequence[int], gap: float) -> list[int]:
        """The largest filler that fits into a gap, and the smallest that does not."""
        if gap <= 0.0 or not fillers:
            return []
        seconds = self._steps.seconds
        fitting = [i for i in fillers if seconds[i] <= gap]  # fillers come by their size
        return [*fitting[-1:], *fillers[len(fitting) : len(fitting) + 1]]

    def _start(self, i: int, clock: float, over: dict[int, float]) -> float:
        for launch in self._steps.needs[i]:
            clock = max(clock, over.get(launch, 0.0))
        return clock

    def _by_size(self, fillers: list[int]) -> tuple[int, ...]:
        return tuple(sorted(fillers, key=self._steps.seconds.__getitem__))

    def _extended(self, partial: _Partial, step: int, start: float) -> _Partial | None:
        """The partial order with one step more; None where that is too long or holds too much."""
        _, _, done, leads, fillers, links, over, left, moves_left, live, peak, history = partial
        steps, tails, over_mask = self._steps, self._tails, done | 1 << step
        if self._memory.made:
            live, top = self._bytes(step, over_mask, live)
            peak = max(peak, top)
            if self._most_bytes is not None and peak > self._most_bytes:
                return None
        seconds, link = steps.seconds[step], steps.link[step]
        if self._slowness > 1.0 and steps.computes[step]:
            clock = slowed_end(start, seconds, self._slowness, max(links, default=0.0))
        else:
            clock = start + seconds
        left -= seconds
        if link >= 0:
            end = max(clock, links[link]) + steps.transfer[step]
            links = (*links[:link], end, *links[link + 1 :])
            moves_left = (*moves_left[:link], moves_left[link] - steps.transfer[step], *moves_left[link + 1 :])
            over = {launch: at for launch, at in over.items() if at > clock}
            over[step] = end
        leads, fillers = self._ready(step, over_mask, leads, fillers)
        thread_end = clock + left
        links_end = 0.0
        for free, moves in zip(links, moves_left, strict=True):
            links_end = max(links_end, free if not moves else max(free, clock) + moves)
        needs, chain_end = steps.needs, 0.0
        for i in leads:
            at = clock
            for launch in needs[i]:
                arrival = over.get(launch, 0.0)
                at = max(at, arrival)
            at += tails[i]
            chain_end = max(chain_end, at)
        end = max(thread_end, links_end, chain_end)
        if end >= self._shortest:
            return None
        key = end + self._weights[0] * thread_end + self._weights[1] * links_end + self._weights[2] * chain_end
        if self._lean:
            key = peak + key / (8.0 * self._most_seconds + 1e-300)  # less than a byte
        return key, clock, over_mask, leads, fillers, links, over, left, moves_left, live, peak, (step, history)

    def _ready(
        self, step: int, done: int, leads: tuple[int, ...], fillers: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What may come next after one step more."""
        masks, is_lead = self._masks, self._leads
        more = [user for user in self._steps.after[step] if masks[user] & ~done == 0]
        if (inside := self._inside) is not None:
            more = [user for user in more if user in inside]
        if is_lead[step]:
            leads = (*[i for i in leads if i != step], *[i for i in more if is_lead[i]])
        else:
            fillers = tuple([i for i in fillers if i != step])
        further = [i for i in more if not is_lead[i]]
        return leads, self._by_size([*fillers, *further]) if further else fillers

    def _bytes(self, step: int, done: int, live: int) -> tuple[int, int]:
        """Live bytes after a step, and their peak during it."""
        memory = self._memory
        top = live + memory.transient[step]
        live += memory.made[step]
        for value in self._used[step]:
            if self._value_masks[value] & ~done == 0:
                live -= memory.sizes[value]
        return live, top


def _key(partial: _Partial) -> float:
    return partial[0]


def _no_later(one: _Partial, other: _Partial) -> bool:
    """Whether of two partial orders of the same steps the first is nowhere later, and does not hold more."""
    clock = other[1]
    if one[1] > clock or one[10] > other[10]:
        return False
    for mine, yours in zip(one[5], other[5], strict=True):
        if mine > yours and mine > clock:
            return False
    ends = other[6]
    return all(at <= clock or at <= ends.get(launch, 0.0) for launch, at in one[6].items())


def _order(history: Any) -> tuple[int, ...]:
    order = []
    while history is not None:
        step, history = history
        order.append(step)
    return tuple(reversed(order))


def _tails(steps: Steps) -> list[float]:
    """Seconds from the start of each step to the end of the longest chain behind it, transfers included."""
    users: list[list[int]] = [[] for _ in range(len(steps))]
    for i, launches in enumerate(steps.needs):
        for launch in launches:
            users[launch].append(i)
    tails = [0.0] * len(steps)
    for i in reversed(range(len(steps))):
        behind = max((tails[user] for user in steps.after[i]), default=0.0)
        if steps.link[i] >= 0:
            behind = max(behind, steps.transfer[i] + max((tails[user] for user in users[i]), default=0.0))
        tails[i] = steps.seconds[i] + behind
    return tails


def _leads(steps: Steps) -> list[bool]:
    """Whether a launch waits for each step, or the step is one."""
    leads = [link >= 0 for link in steps.link]
    for i in reversed(range(len(steps))):
        leads[i] = leads[i] or any(leads[user] for user in steps.after[i])
    return leads
