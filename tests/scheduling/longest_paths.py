"""A slow, obvious simulation of a schedule without messages: longest paths over its actions, in exact fractions.

It knows `Schedule` and `ActionCosts`, and nothing of the numbers and lists that the simulation works on.
"""

from fractions import Fraction
from functools import cache

from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import Action
from annopipe.scheduling.schedule_class import Schedule

Key = tuple[str, int, int]  # kind, stage, microbatch
Sent = tuple[Key, int]  # what an action made, and the stage that it goes to


class LongestPaths:
    def __init__(self, schedule: Schedule, costs: ActionCosts) -> None:
        self.schedule, self.costs, self.placement = schedule, costs, schedule.placement
        self.place: dict[Key, tuple[int, int]] = {}
        self.queue: dict[tuple[int, int], list[Sent]] = {}  # by link, in the order of sending
        for rank, actions in enumerate(schedule.ranks):
            for step, action in enumerate(actions):
                for key in keys(action):
                    self.place[key] = rank, step
                    for target in self.targets(key):
                        line = rank, self.placement.rank_of[target]
                        if line[0] != line[1]:
                            self.queue.setdefault(line, []).append((key, target))

    def targets(self, key: Key) -> tuple[int, ...]:
        kind, stage, _ = key
        if kind == "F":
            return self.placement.successors[stage]
        return self.placement.predecessors[stage] if kind in "BI" else ()

    def inputs(self, key: Key) -> list[Sent]:
        kind, stage, microbatch = key
        if kind == "F":
            return [(("F", before, microbatch), stage) for before in self.placement.predecessors[stage]]
        if kind == "W":
            return [(("I", stage, microbatch), stage)]
        forwards = range(self.schedule.microbatches) if stage in self.placement.batch_wide else [microbatch]
        own = [(("F", stage, m), stage) for m in forwards]
        after = [("I" if ("I", s, microbatch) in self.place else "B", s) for s in self.placement.successors[stage]]
        return [*own, *(((made, s, microbatch), stage) for made, s in after)]

    @cache  # noqa: B019 - the object lives as long as a test
    def start(self, rank: int, step: int) -> Fraction:
        before = self.end(rank, step - 1) if step else Fraction(0)
        arrivals = [self.arrival(sent) for key in keys(self.schedule.ranks[rank][step]) for sent in self.inputs(key)]
        return max([before, *arrivals])

    def end(self, rank: int, step: int) -> Fraction:
        return self.start(rank, step) + Fraction(self.costs.duration(self.schedule.ranks[rank][step]))

    def arrival(self, sent: Sent) -> Fraction:
        (_, stage, _), target = sent
        local = self.placement.rank_of[stage] == self.placement.rank_of[target]
        return self.end(*self.place[sent[0]]) if local else self.on_link(sent)[1] + Fraction(self.costs.latency)

    @cache  # noqa: B019
    def on_link(self, sent: Sent) -> tuple[Fraction, Fraction]:
        key, target = sent
        line = self.queue[self.placement.rank_of[key[1]], self.placement.rank_of[target]]
        position = line.index(sent)
        free = self.on_link(line[position - 1])[1] if position else Fraction(0)
        start = max(free, self.end(*self.place[key]))
        return start, start + Fraction(self.costs.times("send", key[1], self.schedule.microbatches)[key[2]])

    def spans(self) -> list[list[tuple[str, Fraction, Fraction]]]:
        return [
            [(str(action), self.start(rank, step), self.end(rank, step)) for step, action in enumerate(actions)]
            for rank, actions in enumerate(self.schedule.ranks)
        ]

    def messages(self) -> list[tuple[int, int, Fraction, Fraction]]:
        return sorted((*line, *self.on_link(sent)) for line, queue in self.queue.items() for sent in queue)


def keys(action: Action) -> list[Key]:
    singles = action.singles
    return [(one.kind, one.stage, one.microbatch) for one in singles if one.microbatch is not None and one.is_compute]
