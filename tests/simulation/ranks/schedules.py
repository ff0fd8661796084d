"""Small schedules for the tests of pictures: orders written by a loop, and the simplest simulator that runs them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from annopipe.scheduling import placement
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.schedule_class import Schedule
from annopipe.simulation.ranks.spans import Message, RankSpan
from annopipe.simulation.ranks.timeline import ScheduleTimeline

COSTS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "OFFLOAD": 0.5}


@dataclass(frozen=True)
class Drawn:
    """A timeline of many ranks as plain data."""

    name: str
    ranks: int
    spans: tuple[tuple[RankSpan, ...], ...]
    messages: tuple[Message, ...]
    makespan: float
    window: float
    bubble: float
    bubbles: tuple[float, ...]
    peak_memory: float
    peaks: tuple[float, ...]
    memory: tuple[tuple[tuple[float, float], ...], ...]
    exposed_comm: float = 0.0
    critical_path: tuple[RankSpan | Message, ...] = ()

    @property
    def message_count(self) -> int:
        return len(self.messages)

    @property
    def comm_time(self) -> float:
        return math.fsum(message.sent - message.start for message in self.messages)


def one_f_one_b(ranks: int, microbatches: int) -> list[list[str]]:
    orders = []
    for rank in range(ranks):
        ahead = min(microbatches, ranks - rank)
        order = [f"{rank}F{k}" for k in range(ahead)]
        for k in range(microbatches):
            order.append(f"{rank}B{k}")
            order += [f"{rank}F{k + ahead}"] if k + ahead < microbatches else []
        orders.append(order)
    return orders


def zero_bubble(ranks: int, microbatches: int) -> list[list[str]]:
    """ZB-H1: the weight gradients wait until the rank would be idle or hold more than 1F1B does."""
    orders = []
    for rank, order in enumerate(one_f_one_b(ranks, microbatches)):
        split: list[str] = []
        waiting = 0
        for action in order:
            if "F" in action:
                split.append(action)
                continue
            k = int(action.partition("B")[2])
            split.append(f"{rank}I{k}")
            waiting += 1
            if waiting > rank:
                split.append(f"{rank}W{k - rank}")
                waiting -= 1
        orders.append(split + [f"{rank}W{microbatches - n}" for n in range(waiting, 0, -1)])
    return orders


def v_shape(ranks: int, half: int) -> list[list[str]]:
    """Two stages per rank in the shape of a V; forwards of a second half are combined with backwards of the first."""
    orders = []
    for rank in range(ranks):
        near, far = rank, 2 * ranks - 1 - rank
        order = [f"{stage}F{k}" for stage in (near, far) for k in range(half)]
        order += [f"({near}F{half + k};{far}B{k})OVERLAP_F_B" for k in range(half)]
        order += [f"({far}F{half + k};{near}B{k})OVERLAP_F_B" for k in range(half)]
        orders.append([*order, *(f"{stage}B{half + k}" for stage in (far, near) for k in range(half))])
    return orders


def parts_of(action: str) -> list[tuple[int, str, int]]:
    return [(int(s), kind, int(k)) for s, kind, k in re.findall(r"(\d+)([A-Z]+)(\d+)", action)]


def simulate(
    name: str,
    orders: Sequence[Sequence[str]],
    *,
    latency: float = 0.0,
    send: float = 0.0,
    costs: Mapping[str, float] = COSTS,
) -> Drawn:
    """Run the orders: poll all ranks until nothing is left; stages are a chain, each on the rank that names it."""
    rank_of = {part[0]: rank for rank, order in enumerate(orders) for text in order for part in parts_of(text)}
    last = max(rank_of, default=0)
    ends: dict[tuple[int, str, int], float] = {}
    spans: list[list[RankSpan]] = [[] for _ in orders]
    messages: list[Message] = []
    at = [0] * len(orders)
    while any(position < len(order) for position, order in zip(at, orders, strict=True)):
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                parts = parts_of(order[at[rank]])
                times = [_ready(part, ends, rank_of, last, latency + send) for part in parts]
                if None in times:
                    break
                start = max([spans[rank][-1].end if spans[rank] else 0.0, *(t for t in times if t is not None)])
                end = start + sum(costs[kind] for _, kind, _ in parts)
                spans[rank].append(_span(rank, order[at[rank]], parts, start, end, rank_of))
                for stage, kind, k in parts:
                    ends[stage, kind, k] = end
                    there = stage + 1 if kind == "F" else stage - 1
                    if kind in "FBI" and rank_of.get(there, rank) != rank:
                        text = f"{stage}SEND_{'F' if kind == 'F' else 'B'}{k}"
                        messages.append(
                            Message(text, rank, rank_of[there], end, end + send, end + send + latency),
                        )
                at[rank] += 1
                moved = True
        if not moved:
            raise ValueError(f"{name} does not get further than {at}")
    return _timeline(name, spans, messages)


def _ready(part, ends, rank_of, last, delay):
    """When the inputs of an action are there; None while they are not computed."""
    stage, kind, k = part
    if kind == "F":
        needed = [(stage - 1, "F", k)] if stage else []
    elif kind == "W":
        needed = [(stage, "I", k)]
    elif kind in "BI":
        after = "I" if (stage + 1, "I", k) in ends else "B"
        needed = [(stage, "F", k), *([(stage + 1, after, k)] if stage < last else [])]
    else:
        needed = []
    if any(x not in ends for x in needed):
        return None
    return max((ends[x] + delay * (rank_of[x[0]] != rank_of[stage]) for x in needed), default=0.0)


def _span(rank, text, parts, start, end, rank_of):
    own = sorted(stage for stage in rank_of if rank_of[stage] == rank)
    stage, kind, k = parts[0]
    if len(parts) > 1:
        texts = tuple(f"{s}{what}{n}" for s, what, n in parts)
        return RankSpan(rank, text, "OVERLAP_F_B", start, end, stage, k, own.index(stage), texts)
    return RankSpan(rank, text, kind, start, end, stage, k, own.index(stage))


def _timeline(name, spans, messages):
    makespan = max((row[-1].end for row in spans if row), default=0.0)
    memory = []
    for row in spans:
        held, steps = 0.0, [(0.0, 0.0)]
        for span in row:
            kinds = [kind for _, kind, _ in parts_of(span.text)]
            if "F" in kinds:
                held += 1.0
                steps.append((span.start, held))
            if "B" in kinds or "W" in kinds:
                held -= 1.0
                steps.append((span.end, held))
        memory.append(tuple(steps))
    peaks = tuple(max(amount for _, amount in steps) for steps in memory)
    bubbles = tuple(1 - sum(s.end - s.start for s in row) / makespan if makespan else 0.0 for row in spans)
    return Drawn(
        name,
        len(spans),
        tuple(tuple(row) for row in spans),
        tuple(messages),
        makespan,
        max((row[-1].end - row[0].start for row in spans if row), default=0.0),
        sum(bubbles) / len(bubbles) if bubbles else 0.0,
        bubbles,
        max(peaks, default=0.0),
        peaks,
        tuple(memory),
        critical_path=_critical(spans, messages),
    )


def _critical(spans, messages):
    """From the last end backwards: the message that arrives at a start, or else the span of the rank before it."""
    path = []
    current = max((row[-1] for row in spans if row), key=lambda s: s.end, default=None)
    arriving: dict = {}
    for m in messages:
        arriving.setdefault((m.receiver, m.arrival), []).append(m)
    ending = {(s.rank, s.end): s for row in spans for s in row}
    while current is not None:
        path.append(current)
        before = ending.get((current.rank, current.start))
        if before is None:
            message = next(
                (
                    m
                    for m in arriving.get((current.rank, current.start), [])
                    if m.text.endswith(str(current.microbatch))
                ),
                None,
            )
            if message is None:
                break
            path.append(message)
            before = ending[message.sender, message.start]
        current = before
    return tuple(reversed(path))


def with_operations() -> Drawn:
    """Two ranks that offload what a forward leaves, and gather parameters first."""
    orders = [["0F0", "0OFFLOAD0", "0B0"], ["1F0", "1B0", "1OFFLOAD0"]]
    timeline = simulate("offload", orders)
    first = RankSpan(1, "1UNSHARD", "UNSHARD", 0.0, 0.5, 1, None)
    return replace(timeline, spans=(timeline.spans[0], (first, *timeline.spans[1])))


def empty() -> Drawn:
    return simulate("empty", [[], []])


def nano_batched() -> ScheduleTimeline:
    """Microbatch 0 as two nano-batches; on the last rank its backward is two lanes of a pair."""
    rows = [["0F0/2", "0F1", "0B0/2", "0B1"], ["1F0/2", "(1F1;1B0/2)OVERLAP_F_B", "1B1"]]
    schedule = Schedule.of(placement.linear(2), 2, rows, "nano-batches")
    return schedule.simulated(table(B=2.0, lanes={"F/2": 0.5, "F+B/2": 2.5}))
