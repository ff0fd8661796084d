"""A slow, obvious generator: at every moment it looks at every action of every rank. It reads `ScheduleSpec` alone."""

from fractions import Fraction

from annopipe.scheduling.actions import Action, overlap

FORWARD = {"depth-first": "k, c", "breadth-first": "c, k"}
BACKWARD = {"depth-first": "k, v - 1 - c", "breadth-first": "v - 1 - c, k"}


class StopsError(Exception):
    """No rank can go on."""


def exact(number):
    return Fraction(repr(float(number)))


class Reference:
    def __init__(self, spec):
        self.spec, self.placement, self.costs = spec, spec.placement, spec.costs
        self.seen = {s: [*spec.placement.microbatches_of(s, spec.microbatches)] for s in range(self.placement.stages)}
        self.splits = spec.split_backward
        self.has_backward = bool({"B", "I"} & set(spec.priority))
        self.started: list = [[] for _ in range(self.placement.ranks)]  # (time, actions)
        self.ended: dict = {}  # action -> when
        self.running: dict = {}  # rank -> (end, actions)
        self.ages: list = []  # microbatches, (copy, number), in the order in which they began
        self.strict = [self.strict_order(rank) for rank in range(self.placement.ranks)]

    # What the formulas say.

    def evaluate(self, text, stage, microbatch):
        place, copy = self.placement, self.placement.copy_of[stage]
        rank = place.rank_of[stage]
        own = [s for s in place.stages_on[rank] if place.copy_of[s] == copy]
        values = {"p": place.ranks, "r": rank, "m": self.spec.microbatches, "v": len(own), "s": stage}
        values |= {"c": sorted(own, key=lambda s: (place.depth_of[s], s)).index(stage)}
        values |= {"k": self.seen[stage].index(microbatch) if microbatch is not None else None}
        found = eval(text, {"__builtins__": {}, "min": min, "max": max}, values)
        return tuple(map(int, found)) if isinstance(found, tuple) else (int(found),)

    def turn(self, action):
        spec = self.spec
        forward = FORWARD.get(spec.traversal, spec.traversal)
        if action.kind == "F":
            text = forward
        elif spec.backward_traversal is not None:
            text = BACKWARD.get(spec.backward_traversal, spec.backward_traversal)
        else:
            text = BACKWARD.get(spec.traversal, spec.traversal.replace("c", "(v - 1 - c)"))
        return (*self.evaluate(text, action.stage, action.microbatch), action.stage, action.microbatch)

    def is_split(self, stage):
        if self.splits is None:
            return "I" in self.spec.priority
        return self.splits[stage] if isinstance(self.splits, tuple) else self.splits is True

    def strict_order(self, rank):
        entries = []
        for kind, text in self.spec.in_order:
            for stage in self.placement.stages_on[rank]:
                if kind == "F" or self.is_split(stage) == (kind != "B"):
                    for k in self.seen[stage]:
                        entries.append((self.evaluate(text, stage, k), "FBIW".index(kind), stage, k, kind))
        return [Action(kind, stage, k) for _, _, stage, k, kind in sorted(entries)]

    # What has happened.

    def rank_of(self, action):
        return self.placement.rank_of[action.stage]

    def begun(self, rank):
        return [action for _, actions in self.started[rank] for action in actions]

    def backward_end(self, stage, k):
        return self.ended.get(Action("B", stage, k), self.ended.get(Action("I", stage, k)))

    def arrived(self, end, source, stage, k, now):
        if end is None:
            return False
        apart = self.placement.rank_of[source] != self.placement.rank_of[stage]
        delay = exact(self.costs.times("send", source, k + 1)[k]) + exact(self.costs.latency) if apart else 0
        return end + delay <= now

    def is_ready(self, action, now):
        kind, s, k = action.kind, action.stage, action.microbatch
        if kind == "F":
            return all(
                self.arrived(self.ended.get(Action("F", a, k)), a, s, k, now) for a in self.placement.predecessors[s]
            )
        if kind == "W":
            return Action("I", s, k) in self.ended
        needed = self.seen[s] if s in self.placement.batch_wide else [k]
        return all(Action("F", s, other) in self.ended for other in needed) and all(
            self.arrived(self.backward_end(a, k), a, s, k, now) for a in self.placement.successors[s]
        )

    # What is ready, in the order in which it is taken, and what the limits say.

    def ready(self, rank, kind, now):
        begun = set(self.begun(rank))
        found = []
        for stage in self.placement.stages_on[rank]:
            for k in self.seen[stage]:
                action = Action(kind, stage, k)
                other = Action("I" if kind == "B" else "B", stage, k)
                if action in begun or (kind in "BI" and (other in begun or self.is_split(stage) != (kind == "I"))):
                    continue
                if self.is_ready(action, now):
                    found.append(action)
        if kind == "W":
            ended = [action for action in self.begun(rank) if action.kind == "I" and action in self.ended]
            order = [(action.stage, action.microbatch) for action in ended]
            found.sort(key=lambda action: order.index((action.stage, action.microbatch)))
        else:
            found.sort(key=self.turn)
        if kind in [name for name, _ in self.spec.in_order]:
            following = next((action for action in self.strict[rank] if not self.is_begun(action, begun)), None)
            found = [action for action in found if action == following]
        return found

    def is_begun(self, action, begun):
        return action in begun or (action.kind == "B" and Action("I", action.stage, action.microbatch) in begun)

    def allows(self, rank, forward, freed):
        """Whether the forward may start; what the combination frees counts when it has ended, but for memory."""
        spec = self.spec
        if not self.has_backward:
            return True
        forwards = {(a.stage, a.microbatch) for a in self.begun(rank) if a.kind == "F"}
        backwards = {(a.stage, a.microbatch) for a in self.ended if a.kind in "BI" and self.rank_of(a) == rank}
        weights = {(a.stage, a.microbatch) for a in self.ended if a.kind == "W" and self.rank_of(a) == rank}
        full = {(a.stage, a.microbatch) for a in self.ended if a.kind == "B" and self.rank_of(a) == rank}
        held = sum((self.activation(s) for s, _ in forwards), Fraction(0))
        held -= sum((self.activation(s) * (1 - self.kept()) for s, _ in backwards - full), Fraction(0))
        held -= sum((self.activation(s) for s, _ in full), Fraction(0))
        held -= sum((self.activation(s) * self.kept() for s, _ in weights), Fraction(0))
        forwards.add((forward.stage, forward.microbatch))
        if freed is not None:
            backwards.add((freed.stage, freed.microbatch))
        in_flight = forwards - backwards
        if isinstance(spec.in_flight, str) and {"s", "c"} & set(spec.in_flight):
            limit = self.evaluate(spec.in_flight, forward.stage, None)[0]
            if sum(stage == forward.stage for stage, _ in in_flight) > limit:
                return False
            count = None
        elif isinstance(spec.in_flight, str):
            count = self.evaluate(spec.in_flight, self.placement.stages_on[rank][0], None)[0]
        else:
            count = spec.in_flight[rank] if isinstance(spec.in_flight, tuple) else spec.in_flight
        memory = spec.memory[rank] if isinstance(spec.memory, tuple) else spec.memory
        room = [
            Fraction(10**9 if count is None else count) - len(in_flight),
            Fraction(10**9 if memory is None else memory) - held - self.activation(forward.stage),
        ]
        return min(room) >= 0 and self.can_all_finish(rank, forwards, backwards, room)

    def can_all_finish(self, rank, forwards, backwards, room):
        """In the order of their age each takes what it still needs, if that is there, and gives back what it has.

        One that begins with this forward is the last: when all before it have given back what they have, it has the
        whole limit, which is enough for any one.
        """
        for copy, k in self.ages:
            own = [(s, k) for s in self.placement.stages_on[rank] if self.placement.copy_of[s] == copy]
            needed = self.amount([pair for pair in own if pair not in forwards])
            held = self.amount([pair for pair in own if pair in forwards and pair not in backwards])
            if needed[0] > room[0] or needed[1] > room[1]:
                return False
            room = [room[0] + held[0], room[1] + held[1]]
        return True

    def amount(self, pairs):
        return len(pairs), sum((self.activation(stage) for stage, _ in pairs), Fraction(0))

    def activation(self, stage):
        return exact(self.costs.activation_of(stage))

    def kept(self):
        return exact(self.costs.kept_for_weight)

    # One moment after the other.

    def choose(self, rank, now):
        spec = self.spec
        if spec.pair:
            for partner in self.ready(rank, spec.pair[1], now)[:1]:
                freed = partner if partner.kind in "BI" else None
                for forward in self.ready(rank, "F", now):
                    if self.allows(rank, forward, freed):
                        return (forward, partner)
        strict = [kind for kind, _ in spec.in_order]
        for kind in sorted(spec.priority, key=lambda kind: kind not in strict):
            for action in self.ready(rank, kind, now):
                if kind != "F" or self.allows(rank, action, None):
                    if kind == "B" and spec.split_backward == "unpaired":
                        return (Action("I", action.stage, action.microbatch),)
                    return (action,)
        return None

    def duration(self, actions):
        costs = self.costs
        if len(actions) == 1:
            (action,) = actions
            if action.kind == "B" and costs.B is None:
                own = (Action(kind, action.stage, action.microbatch) for kind in "IW")
                return sum(exact(costs.duration(part)) for part in own)
            return exact(costs.duration(action))
        if costs.overlap is None and (costs.FB is None or actions[1].kind != "B"):
            return sum(self.duration((action,)) for action in actions)
        return exact(costs.duration(overlap(*actions)))

    def run(self):
        now, times = Fraction(0), set()
        while True:
            for rank, (end, actions) in [*self.running.items()]:
                if end <= now:
                    del self.running[rank]
                    self.ended |= dict.fromkeys(actions, end)
                    times |= {end + delay for action in actions for delay in self.delays(action)}
            for rank in range(self.placement.ranks):
                actions = None if rank in self.running else self.choose(rank, now)
                if actions:
                    self.started[rank].append((now, actions))
                    begun = [(self.placement.copy_of[a.stage], a.microbatch) for a in actions if a.kind == "F"]
                    self.ages += [microbatch for microbatch in begun if microbatch not in self.ages]
                    self.running[rank] = now + self.duration(actions), actions
            times = {time for time in times if time > now}
            following = [*times, *(end for end, _ in self.running.values())]
            if not following:
                break
            now = min(following)
        done = sum(len(actions) for rank in self.started for _, actions in rank)
        whole = sum(map(len, self.seen.values()))
        split = sum(action.kind == "I" for action in self.ended)
        if done < whole * (2 if self.has_backward else 1) + split:
            raise StopsError
        return self.started

    def delays(self, action):
        if action.kind == "W":
            return []
        k = action.microbatch
        return [exact(self.costs.times("send", action.stage, k + 1)[k]) + exact(self.costs.latency)]
