"""The checker's rules once more, slow and obvious: on actions, by search over everything."""

from collections import Counter

from annopipe.scheduling.actions import Action
from annopipe.scheduling.routes import routes


class Reference:
    """Everything that is wrong with programs, as names of rules; and who waits for whom."""

    def __init__(self, programs) -> None:
        self.programs, self.where = programs, programs.placement
        self.rows = [programs.actions(rank) for rank in range(self.where.ranks)]
        self.places: dict = {}
        for rank, row in enumerate(self.rows):
            for step, action in enumerate(row):
                for single in singles(action):
                    self.places.setdefault(single, (rank, step))
        kinds = {single[0] for single in self.places}
        self.backward = bool(kinds & {"B", "I", "W"})
        self.messages = any(kind.startswith(("SEND", "RECV")) for kind in kinds)

    def problems(self):
        found = {name for name in ("owner", "copies", "once") if getattr(self, f"bad_{name}")()}
        if found:
            return found
        rest = ("own_order", "messages", "message_order", "parameters", "deadlock")
        return {name for name in rest if getattr(self, f"bad_{name}")()}

    def bad_owner(self):
        return any(
            self.where.rank_of[part.stage] != rank
            for rank, row in enumerate(self.rows)
            for action in row
            for part in action.singles
        )

    def bad_copies(self):
        return any(
            k is not None
            and not kind_of_user(kind)
            and k not in self.where.microbatches_of(stage, self.programs.microbatches)
            for kind, stage, k in self.places
        )

    def bad_once(self):
        counts = Counter(s for row in self.rows for action in row for s in singles(action) if s[2] is not None)
        if any(count > 1 for count in counts.values()):
            return True
        combined = Counter(action for row in self.rows for action in row if action.parts)
        if any(count > 1 for count in combined.values()):
            return True
        for stage in range(self.where.stages):
            for k in self.where.microbatches_of(stage, self.programs.microbatches):
                done = "".join(kind for kind in "FBIW" if (kind, stage, k) in self.places)
                if done not in (("FB", "FIW") if self.backward else ("F",)):
                    return True
        return False

    def before(self, first, second):
        """Whether a rank has finished the first when it starts the second."""
        return self.places[first][1] < self.places[second][1]

    def gradient(self, stage, k):
        return ("B", stage, k) if ("B", stage, k) in self.places else ("I", stage, k)

    def bad_own_order(self):
        for kind, stage, k in self.places:
            if kind in ("B", "I"):
                first = [("F", stage, k)]
                if stage in self.where.batch_wide:
                    first += [("F", stage, j) for j in self.where.microbatches_of(stage, self.programs.microbatches)]
                if not all(self.before(one, (kind, stage, k)) for one in first):
                    return True
            if kind == "W" and not self.before(("I", stage, k), (kind, stage, k)):
                return True
        return False

    def bad_messages(self):
        if not self.messages:
            return False
        wanted = set()
        for route in routes(self.where):
            if route.send == "SEND_B" and not self.backward:
                continue
            for k in self.where.microbatches_of(route.source, self.programs.microbatches):
                wanted |= {(route.send, route.source, k), (route.receive, route.target, k)}
        if wanted != {single for single in self.places if single[0].startswith(("SEND", "RECV"))}:
            return True
        for kind, stage, k in wanted:
            own = ("F", stage, k) if kind.endswith("F") else self.gradient(stage, k)
            message = (kind, stage, k)
            if not (self.before(own, message) if kind.startswith("SEND") else self.before(message, own)):
                return True
        return False

    def between(self, a, b):
        """The messages of a rank with another one, in order: (direction, stages, microbatch)."""
        found = []
        for action in self.rows[a]:
            for route in routes(self.where):
                message = (route.send, route.source, route.target, action.microbatch)
                sent = (a, b, route.send, route.source), (b, a, route.receive, route.target)
                if route.ordered and (route.sender, route.receiver, action.kind, action.stage) in sent:
                    found.append(message)
        return found

    def bad_message_order(self, *, pairs=False):
        if not self.messages or self.bad_messages():
            return False
        for a in range(self.where.ranks):
            for b in range(self.where.ranks):
                ours, theirs = self.between(a, b), self.between(b, a)
                if not pairs:
                    sent = {
                        (r.send, r.source, r.target) for r in routes(self.where) if (r.sender, r.receiver) == (a, b)
                    }
                    ours, theirs = ([m for m in side if m[:3] in sent] for side in (ours, theirs))
                if ours != theirs:
                    return True
        return False

    def bad_parameters(self):
        for row in self.rows:
            held: dict = {}
            reduced = set()
            managed = {action.stage for action in row if action.kind in ("UNSHARD", "RESHARD")}
            last = {}
            for step, action in enumerate(row):
                for kind, stage, _ in singles(action):
                    if kind in "BIW":
                        last[stage] = step
            for step, action in enumerate(row):
                stage = action.stage
                if action.kind in ("UNSHARD", "RESHARD"):
                    if held.get(stage, False) == (action.kind == "UNSHARD"):
                        return True
                    held[stage] = action.kind == "UNSHARD"
                if action.kind == "REDUCE_GRAD":
                    if stage in reduced or last.get(stage, step) >= step:
                        return True
                    reduced.add(stage)
                used = {stage for kind, stage, _ in singles(action) if kind in "FBIW"}
                if any(stage in managed and not held.get(stage, False) for stage in used):
                    return True
        return False

    def edges(self):
        """(rank, step) -> what must have been done before it starts."""
        after = {}
        for rank, row in enumerate(self.rows):
            for step, action in enumerate(row):
                needed = {(rank, step - 1)} if step else set()
                for single in singles(action):
                    needed |= {self.places[n] for n in self.needs(*single) if n in self.places}
                after[rank, step] = needed
        return after

    def needs(self, kind, stage, k):
        if kind in ("F", "B", "I"):
            forward = kind == "F"
            for other in self.where.predecessors[stage] if forward else self.where.successors[stage]:
                if self.messages and self.where.rank_of[other] != self.where.rank_of[stage]:
                    yield "SEND_F" if forward else "SEND_B", other, k
                else:
                    yield ("F", other, k) if forward else self.gradient(other, k)

    def bad_deadlock(self):
        edges = self.edges()
        done: set = set()
        while True:
            more = {place for place, needed in edges.items() if place not in done and needed <= done}
            if not more:
                return len(done) < len(edges)
            done |= more


def kind_of_user(kind):
    return kind not in ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")


def singles(action: Action):
    return [(part.kind, part.stage, part.microbatch) for part in action.singles]
