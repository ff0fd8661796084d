"""How long the actions of a schedule take and what they keep in memory: plain numbers, no torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, cast

from annopipe.errors import CostError, ScheduleError
from annopipe.scheduling.actions import COMPUTE, Action
from annopipe.scheduling.lanes import check_lanes, lanes_text, of_lanes, whole
from annopipe.scheduling.numbering import Numbering

__all__ = ["ActionCosts", "PerStage", "table"]

# One number for every stage, one per stage, or a function of stage and microbatch.
PerStage = float | Sequence[float] | Callable[[int, int], float]

_SINGLE = ("FB", "latency")
_PER_STAGE = ("F", "I", "W", "B", "send", "activation", "kept_for_weight", "parameters")
_NO_FUNCTION = ("latency", "kept_for_weight", "activation", "parameters")
_TABLES = ("exposed", "operations", "lanes", "communication")
_FUNCTION_TABLES = ("exposed FB", "operations ", "lanes ")


@dataclass(frozen=True, repr=False)
class ActionCosts:
    """Seconds and bytes (or any other units) of a schedule's actions; `annopipe.costs.table` makes it.

    "Per stage" is one number for all stages, a sequence with one per stage, or a function of stage and microbatch.

    Attributes:
        F, I, W: time of forward, backward-input and backward-weight, per stage.
        B: time of the full backward, per stage; None is I + W.
        FB: time of a forward and a full backward as one combined graph: a number, or a function of the stage of the
            forward and the stage of the backward; None is the sum of F and B.
        lanes: time of what runs in several lanes, by name, per stage: "F/2" is a forward as two nano-batches, "F+F" two
            forwards together, "F+B/2" a pair whose backward runs as two; the stage is that of the first in the name.
        overlap: time of anything in several lanes, as a function of the action; it replaces `FB` and `lanes` where it
            does not return None. Where nobody says, what runs as nano-batches takes the time of the whole, and a
            combination other than one F with one B the sum of its parts.
        send: time for which a message occupies its link, per sending stage; a link is one direction between two ranks,
            and carries one message after the other.
        latency: time from the end of sending to arrival.
        activation: memory that a forward leaves for its backward, per stage (a number or one per stage).
        kept_for_weight: what stays from the end of I to the end of W, as a share of the activation, per stage (a number
            or one per stage); more than 1 where I leaves more than F did, as it does when it computes values again.
        parameters: memory that a stage's parameters and their gradients occupy all the time, per stage.
        exposed: of the time of "F", "B", "I", "W", "FB" and names as in `lanes`, the communication inside it that
            nothing hides, per stage (a number or one per stage; that of "FB" also a function as `FB`). What the lanes
            save, compared with one after the other, they hide, unless it is given.
        communication: the communication inside "F", "B", "I", "W" and names as in `lanes`, hidden or not, per stage (a
            number or one per stage); what is not given is what is exposed of it alone, a combination has that of its
            parts.
        overlap_by_stage: whether `overlap` looks at the kinds, stages and nano-batches of an action alone, not at its
            microbatches: the generator then asks it once for each, which is a good part of its time.
        inside: for anything in several lanes, how long communication is under way and how much of that nothing hides,
            as a function of the action; it replaces `communication` and `exposed` where it does not return None.
        operations: time of UNSHARD, RESHARD, REDUCE_GRAD and of operations that users add, by kind; 0 when absent. A
            function gets microbatch 0 for what is done once per stage.

    Raises CostError for a time that is negative or not finite, for a sequence or a function where one is not taken, and
    for a name that is not known; what functions return is looked at when it is used.
    """

    F: PerStage = 1.0
    I: PerStage = 1.0  # noqa: E741 - the field's own name
    W: PerStage = 1.0
    B: PerStage | None = None
    FB: float | Callable[[int, int], float] | None = None
    send: PerStage = 0.0
    latency: float = 0.0
    activation: float | Sequence[float] = 1.0
    kept_for_weight: float | Sequence[float] = 1.0
    parameters: float | Sequence[float] = 0.0
    exposed: Mapping[str, float | Sequence[float] | Callable[[int, int], float]] = field(default_factory=dict)
    operations: Mapping[str, PerStage] = field(default_factory=dict)
    overlap: Callable[[Action], float | None] | None = None
    lanes: Mapping[str, PerStage] = field(default_factory=dict)
    communication: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    inside: Callable[[Action], tuple[float, float] | None] | None = None
    overlap_by_stage: bool = False

    def __post_init__(self) -> None:
        _check(self)

    def __repr__(self) -> str:
        """The fields that differ from their defaults, as a call that makes the same value."""
        default = type(self)()
        given = ((name, getattr(self, name)) for name in type(self).__dataclass_fields__)
        shown = (f"{name}={value!r}" for name, value in given if value != getattr(default, name))
        return f"ActionCosts({', '.join(shown)})"

    def times(self, kind: str, stage: int, microbatches: int) -> list[float]:
        """The time of F, B, I, W or "send" for every microbatch of a stage.

        >>> table(F=[1.0, 2.0]).times("F", 1, 3), table(I=1.5).times("B", 0, 2)
        ([2.0, 2.0, 2.0], [2.5, 2.5])
        """
        summed = ("I", "W") if kind == "B" and self.B is None else (kind,)
        given: list[tuple[str, PerStage]] = [(name, getattr(self, name)) for name in summed]
        if not any(callable(time) for _, time in given):
            return [sum(_at(time, name, stage, 0) for name, time in given)] * microbatches
        return [sum(_at(time, name, stage, m) for name, time in given) for m in range(microbatches)]

    def duration(self, action: Action) -> float:
        """The time of one action; messages take none of the rank's own time.

        >>> from annopipe.scheduling.actions import Action
        >>> costs = table(F=1.0, I=1.0, W=1.0, FB=2.5)
        >>> costs.duration(Action.parse("(0F1;1B0)OVERLAP_F_B")), costs.duration(Action.parse("(0F1;1W0)OVERLAP"))
        (2.5, 2.0)
        """
        if action.parts or action.nano_batches > 1:
            return self._in_lanes(action)
        kind, stage, microbatch = action.kind, action.stage, action.microbatch or 0
        if kind == "B" and self.B is None:
            return _at(self.I, "I", stage, microbatch) + _at(self.W, "W", stage, microbatch)
        given = getattr(self, kind) if kind in COMPUTE else self.operations.get(kind, 0.0)
        return _at(given, kind, stage, microbatch)

    def activation_of(self, stage: int) -> float:
        """What one microbatch keeps on a stage from its forward to its backward."""
        return _number(self.activation, "activation", stage)

    def kept_for_weight_of(self, stage: int) -> float:
        """The share of a stage's activation that stays from the end of I to the end of W."""
        return _number(self.kept_for_weight, "kept_for_weight", stage)

    def parameters_of(self, stage: int) -> float:
        """What the parameters of a stage occupy."""
        return _number(self.parameters, "parameters", stage)

    def exposed_of(self, action: Action) -> float:
        """The communication inside an action that nothing hides.

        >>> costs = table(F=1.0, exposed={"F": 0.4}, lanes={"F/2": 0.75})
        >>> costs.exposed_of(Action.parse("0F0")), round(costs.exposed_of(Action.parse("0F0/2")), 3)
        (0.4, 0.15)
        """
        inside = self._inside(action)
        if inside is not None:
            return inside[1]
        name, first = lanes_text(action), of_lanes(action)
        if name in self.exposed:
            return _number(cast("float | Sequence[float]", self.exposed[name]), f"exposed {name}", first.stage)
        if not name or (action == whole(action) and name not in self.lanes):
            return self._exposed_of_whole(action)
        singles = [whole(part) for part in action.singles]
        if name not in self.lanes and len(singles) > 1:
            return min(self.exposed_of(whole(action)), self.duration(action))
        saved = sum(map(self.duration, singles)) - self.duration(action)
        return max(0.0, min(sum(map(self._exposed_of_whole, singles)) - saved, self.duration(action)))

    def communication_of(self, action: Action) -> float:
        """The communication inside an action, hidden or not.

        >>> costs = table(F=1.0, exposed={"F": 0.4}, communication={"F/2": 0.5})
        >>> costs.communication_of(Action.parse("0F0")), costs.communication_of(Action.parse("0F0/2"))
        (0.4, 0.5)
        """
        inside = self._inside(action)
        if inside is not None:
            return inside[0]
        name, first = lanes_text(action), of_lanes(action)
        if name in self.communication:
            return _number(self.communication[name], f"communication {name}", first.stage)
        if action.parts:
            return sum(map(self.communication_of, action.parts))
        if action.nano_batches > 1:
            return self.communication_of(whole(action))
        if action.kind in self.communication:
            return _number(self.communication[action.kind], f"communication {action.kind}", action.stage)
        return self._exposed_alone(action.kind, action.stage)

    def _inside(self, action: Action) -> tuple[float, float] | None:
        if self.inside is None or not (action.parts or action.nano_batches > 1):
            return None
        found = self.inside(action)
        if found is None:
            return None
        everything, exposed = found
        return _checked(everything, f"communication of {action}"), _checked(exposed, f"exposed {action}")

    def _exposed_of_whole(self, action: Action) -> float:
        pair = sorted(action.parts, key=lambda part: part.kind, reverse=True)
        of_pair = self.exposed.get("FB") if [part.kind for part in pair] == ["F", "B"] else None
        if callable(of_pair):
            return _checked(of_pair(pair[0].stage, pair[1].stage), f"exposed FB of {action}")
        if of_pair is not None:
            return _number(of_pair, "exposed FB", pair[0].stage)
        alone = sum(self._exposed_alone(part.kind, part.stage) for part in action.singles)
        # What runs together may hide what would be exposed alone, and never exposes more than it takes.
        return min(alone, self.duration(action)) if action.parts else alone

    def _exposed_alone(self, kind: str, stage: int) -> float:
        if kind == "B" and "B" not in self.exposed and self.B is None:
            return self._exposed_alone("I", stage) + self._exposed_alone("W", stage)
        # Only that of FB may be a function: the others are refused when the costs are made.
        return _number(cast("float | Sequence[float]", self.exposed.get(kind, 0.0)), f"exposed {kind}", stage)

    def refuse_other_stages(self, numbering: Numbering) -> None:
        """Raise CostError when a sequence does not have one entry for each stage."""
        for name, given in _named(self).items():
            if isinstance(given, Sequence) and len(given) != numbering.stages:
                raise CostError(
                    f"{name} has {len(given)} entries and the schedule {numbering.stages} stages; give one number for "
                    "all stages, or one for each"
                )

    def _in_lanes(self, action: Action) -> float:
        found = self.overlap(action) if self.overlap else None
        if found is not None:
            return _checked(found, str(action))
        name, first = lanes_text(action), of_lanes(action)
        if name in self.lanes:
            return _at(self.lanes[name], f"lanes {name}", first.stage, first.microbatch or 0)
        if not action.parts:
            return self.duration(whole(action))
        kinds = sorted(part.kind for part in action.parts)
        if self.FB is not None and kinds == ["B", "F"]:
            if not callable(self.FB):
                return float(self.FB)
            forward, backward = sorted(action.parts, key=lambda part: part.kind, reverse=True)
            return _checked(self.FB(forward.stage, backward.stage), f"FB of {action}")
        return sum(self.duration(part) for part in action.parts)


def table(
    F: PerStage = 1.0,
    I: PerStage = 1.0,  # noqa: E741 - the field's own name
    W: PerStage = 1.0,
    B: PerStage | None = None,
    FB: float | Callable[[int, int], float] | None = None,
    send: PerStage = 0.0,
    latency: float = 0.0,
    activation: float | Sequence[float] = 1.0,
    **more: Any,
) -> ActionCosts:
    """Costs of actions from numbers; `more` are the other attributes of `ActionCosts`.

    Raises CostError for an unknown name, or a time that is negative or not finite.

    >>> table(F=1.0, I=1.0, W=0.5).duration(Action("B", 0, 0))
    1.5
    """
    known = ActionCosts.__dataclass_fields__
    unknown = sorted(set(more) - set(known))
    if unknown:
        raise CostError(f"table() does not know {unknown[0]!r}; it takes {', '.join(known)}")
    return ActionCosts(F, I, W, B, FB, send, latency, activation, **more)


def _at(given: PerStage, name: str, stage: int, microbatch: int) -> float:
    if callable(given):
        return _checked(given(stage, microbatch), f"{name} of stage {stage}, microbatch {microbatch}")
    return _number(given, name, stage)


def _number(given: float | Sequence[float], name: str, stage: int) -> float:
    if not isinstance(given, Sequence):
        return float(given)
    if stage >= len(given):
        raise CostError(f"{name} has {len(given)} entries and stage {stage} none; give one for each stage")
    return float(given[stage])


def _checked(value: object, name: str) -> float:
    try:
        # Real: numbers of numpy too.
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    # A comparison with NaN is never true.
    if 0.0 <= number < math.inf:
        return number
    raise CostError(f"{name} is {value!r}: give a number that is finite and not negative")


def _check(costs: ActionCosts) -> None:
    for name in _TABLES:
        if not isinstance(getattr(costs, name), Mapping):
            raise CostError(
                f"{name} is {getattr(costs, name)!r}: give a mapping of kinds to times, such as {{'F': 0.1}}"
            )
    _check_names(costs)
    for name in ("overlap", "inside"):
        given = getattr(costs, name)
        if given is not None and not callable(given):
            more = "; FB= and lanes= take numbers too" if name == "overlap" else ""
            raise CostError(f"{name} is {given!r}: give a function of the action{more}")
    for name, value in _named(costs).items():
        function = callable(value) and _takes_function(name)
        if function or (value is None and name in ("B", "FB")):
            continue
        several = isinstance(value, Sequence) and not isinstance(value, str) and name not in _SINGLE
        for number in value if several else (value,):
            _checked(number, name)


def _takes_function(name: str) -> bool:
    table, _, entry = name.partition(" ")
    return name.startswith(_FUNCTION_TABLES) if entry else table not in _NO_FUNCTION


def _check_names(costs: ActionCosts) -> None:
    """What stands in tables: kinds, what runs in lanes, operations."""
    for table_name, plain in (("exposed", (*COMPUTE, "FB")), ("communication", COMPUTE), ("lanes", ())):
        for name in getattr(costs, table_name):
            if name in plain:
                continue
            if not isinstance(name, str) or (plain and not set(name) & set("/+")):
                known = f"{', '.join(plain[:-1])} and {plain[-1]}" if plain else "names of lanes"
                raise CostError(f"{table_name} names {name!r}; it knows {known}")
            check_lanes(name, table_name)
    for name in costs.operations:
        _refuse_no_operation(name)


def _refuse_no_operation(name: str) -> None:
    try:
        Action(name, 0)
    except ScheduleError:
        raise CostError(
            f"operations names {name!r}: it takes UNSHARD, RESHARD, REDUCE_GRAD and operations that users add, in "
            "capitals; F, I, W, B, FB, overlap and send are arguments of their own"
        ) from None


def _named(costs: ActionCosts) -> dict[str, Any]:
    """Everything that holds numbers, by the name that messages use."""
    named = {name: getattr(costs, name) for name in (*_SINGLE, *_PER_STAGE)}
    for table_name in _TABLES:
        named |= {f"{table_name} {kind}": value for kind, value in getattr(costs, table_name).items()}
    return named
