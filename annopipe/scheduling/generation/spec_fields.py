"""The fields of a specification, and what of them does not fit together."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import COMPUTE
from annopipe.scheduling.generation.formulas import NAMES, compiled, compiled_keys
from annopipe.scheduling.generation.phases import parse_phases
from annopipe.scheduling.numbering import Numbering
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.placement import Placement

__all__ = ["IN_FLIGHT_NAMES", "LAYOUT_NAMES", "MOST_PAIRS", "ORDERS", "Limit", "SpecFields"]

Limit = int | str | tuple[int, ...] | None

ORDERS = ("depth-first", "breadth-first")
# What formulas may name: an in-flight limit holds for all microbatches, a layout for all ranks.
IN_FLIGHT_NAMES = tuple(name for name in NAMES if name != "k")
LAYOUT_NAMES = ("p", "m", "v")
MOST_PAIRS = 10_000_000  # stages times microbatches: more is a slip, and would not fit into memory
_OF_RULES = ("split_backward", "in_order", "in_flight", "memory", "pair")
_SEVERAL = ("priority", "split_backward", "in_order", "in_flight", "memory", "pair", "phases", "operations")


@dataclass(frozen=True, repr=False)
class SpecFields:
    """What `ScheduleSpec` holds: see there. Lists become tuples, so that equal specifications compare equal.

    Raises ScheduleError for fields that do not fit together, CostError for costs of another count of stages.
    """

    placement: Placement
    microbatches: int
    priority: tuple[str, ...] = ("B", "F")
    split_backward: bool | str | tuple[bool, ...] | None = None
    traversal: str = "depth-first"
    backward_traversal: str | None = None
    in_order: tuple[tuple[str, str], ...] = ()
    in_flight: Limit = None
    memory: float | tuple[float, ...] | None = None
    pair: tuple[str, str] | None = None
    phases: tuple[str, ...] = ()
    layout_for: str = "m"
    operations: tuple[Operation, ...] = ()
    # Costs have dictionaries, which have no hash.
    costs: ActionCosts = field(default_factory=ActionCosts, hash=False)
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in _SEVERAL:
            object.__setattr__(self, name, _without_lists(getattr(self, name)))
        problem = next(_problems(self), None)
        if problem:
            raise ScheduleError(f"{self.name or 'schedule spec'}: {problem}")
        self.costs.refuse_other_stages(Numbering(self.placement.stages, self.microbatches))

    @property
    def has_backward(self) -> bool:
        """Whether there is any backward."""
        return "B" in self.priority or "I" in self.priority


def _without_lists(value: object) -> object:
    return tuple(map(_without_lists, value)) if isinstance(value, list | tuple) else value


def _problems(spec: SpecFields) -> Iterator[str]:
    """What is wrong with the fields; each check takes for granted what those before it found."""
    if not isinstance(spec.placement, Placement):
        yield f"placement is {spec.placement!r}; make one with annopipe.placement, such as placement.linear(ranks=4)"
    if not isinstance(spec.costs, ActionCosts):
        yield f"costs is {spec.costs!r}; make them with annopipe.costs.table"
    if type(spec.microbatches) is not int or spec.microbatches < 1:
        yield f"microbatches={spec.microbatches!r}: give a whole number, 1 or more"
    if spec.microbatches * spec.placement.stages > MOST_PAIRS:
        yield (
            f"microbatches={spec.microbatches} on {spec.placement.stages} stages are more than {MOST_PAIRS} forwards; "
            "give fewer"
        )
    if not isinstance(spec.name, str):
        yield f"name={spec.name!r}: give text"
    kinds: object = spec.priority
    if not isinstance(kinds, tuple) or any(kind not in COMPUTE for kind in kinds) or "F" not in kinds:
        yield f"priority={kinds!r}: name each of F, B, I and W at most once, and F"
    if len(set(spec.priority)) < len(spec.priority):
        yield f"priority={kinds!r}: name each of F, B, I and W at most once, and F"
    if ("I" in spec.priority) != ("W" in spec.priority):
        yield f"priority={kinds!r}: a separated backward is I and W, name both"
    if spec.pair is not None and spec.pair not in (("F", "B"), ("F", "I"), ("F", "W")):
        yield f"pair={spec.pair!r}: a pair is F with B, I or W"
    if spec.pair is not None and spec.pair[1] not in spec.priority:
        yield f"pair={spec.pair!r}, and priority={spec.priority!r} has no such kind"
    operations: object = spec.operations
    if not isinstance(operations, tuple) or not all(isinstance(operation, Operation) for operation in operations):
        yield f"operations={operations!r}: give a tuple of annopipe.Operation"
    yield from _split_problems(spec)
    yield from _order_problems(spec)
    yield from _limit_problems(spec)
    yield from _phase_problems(spec)


def _split_problems(spec: SpecFields) -> Iterator[str]:
    split: object = spec.split_backward
    if split is None:
        return
    if isinstance(split, str) and (split != "unpaired" or spec.pair != ("F", "B")):
        yield f"split_backward={split!r}: 'unpaired' goes with pair=('F', 'B'); else give True, False or one per stage"
    answers = split if isinstance(split, tuple) else (split == "unpaired" or split,)
    if not all(isinstance(answer, bool) for answer in answers):
        yield f"split_backward={split!r}: give True, False, one per stage, or 'unpaired'"
    if isinstance(split, tuple) and len(split) != spec.placement.stages:
        yield f"split_backward has {len(split)} entries and there are {spec.placement.stages} stages; give one for each"
    if True in answers and "I" not in spec.priority:
        yield f"split_backward={split!r}, and priority={spec.priority!r} has no I and W; say where they belong"
    if (False in answers or split == "unpaired") and "B" not in spec.priority:
        yield f"split_backward={split!r}, and priority={spec.priority!r} has no B; say where it belongs"


def _order_problems(spec: SpecFields) -> Iterator[str]:
    for name in ("traversal", "backward_traversal"):
        text = getattr(spec, name)
        if text not in ORDERS and not (text is None and name == "backward_traversal"):
            yield from _formula_problems(f"{name}={text!r} is not one of {', '.join(ORDERS)}", text, NAMES)
    order: object = spec.in_order
    if not isinstance(order, tuple) or not all(isinstance(entry, tuple) and len(entry) == 2 for entry in order):
        yield f"in_order={order!r}: give (kind, formula) pairs, such as (('F', 'k'),)"
    for kind, text in spec.in_order:
        if kind not in spec.priority:
            yield f"in_order names {kind!r}, and priority={spec.priority!r} has no such kind"
        yield from _formula_problems(f"in_order of {kind}", text, NAMES)
    kinds = [kind for kind, _ in spec.in_order]
    if len(set(kinds)) < len(kinds):
        yield f"in_order={order!r}: name each kind once"
    if len({len(compiled_keys(text)) for _, text in spec.in_order}) > 1:
        yield f"in_order={order!r}: the kinds are in one order, give each as many keys"
    if spec.pair is not None and set(spec.pair) <= set(kinds):
        yield f"in_order names {spec.pair[0]} and {spec.pair[1]}, which pair={spec.pair!r} runs together; leave one out"
    if spec.split_backward == "unpaired" and {"I", "W"} & set(kinds):
        yield "in_order names I or W, and split_backward='unpaired' does not say which there are; name F or B"


def _limit_problems(spec: SpecFields) -> Iterator[str]:
    limit: object = spec.in_flight
    whole = type(limit) is int or (isinstance(limit, tuple) and all(type(entry) is int for entry in limit))
    if isinstance(limit, str):
        yield from _formula_problems("in_flight", limit, IN_FLIGHT_NAMES)
    elif limit is not None and not whole:
        yield f"in_flight={limit!r}: give a whole number, one per rank, or a formula such as 'p - r'"
    memory: object = spec.memory
    sizes = memory if isinstance(memory, tuple) else () if memory is None else (memory,)
    if not all(map(_is_size, sizes)):
        yield f"memory={memory!r}: give a number that is not negative, or one per rank"
    for name, given in (("in_flight", limit), ("memory", memory)):
        if isinstance(given, tuple) and len(given) != spec.placement.ranks:
            yield f"{name} has {len(given)} entries and there are {spec.placement.ranks} ranks; give one for each"


def _is_size(value: object) -> bool:
    # A comparison with NaN is never true; whole numbers may be larger than any float.
    fits = isinstance(value, int | float) and (0 <= value <= sys.float_info.max or value == math.inf)
    return fits and not isinstance(value, bool)


def _phase_problems(spec: SpecFields) -> Iterator[str]:
    yield from _formula_problems("layout_for", spec.layout_for, LAYOUT_NAMES)
    if not isinstance(spec.phases, tuple) or not all(isinstance(line, str) for line in spec.phases):
        yield f"phases={spec.phases!r}: give a tuple of lines, such as ('m : F', 'm : B')"
    if not spec.phases:
        if spec.layout_for != "m":
            yield f"layout_for={spec.layout_for!r} belongs to phases, and there are none"
        return
    ruled = [name for name in _OF_RULES if getattr(spec, name) not in (None, ())]
    if ruled:
        yield f"phases give the exact order, and {ruled[0]} belongs to rules; leave one of them out"
    try:
        parse_phases(spec.phases)
    except ScheduleError as error:
        yield f"phases: {error}"


def _formula_problems(what: str, text: object, names: tuple[str, ...]) -> Iterator[str]:
    """What is wrong with a formula; an order has several keys, a number has one."""
    if not isinstance(text, str):
        yield f"{what}: {text!r} is not a formula; give text"
        return
    try:
        compiled_keys(text) if names == NAMES else compiled(text, names)
    except ScheduleError as error:
        yield f"{what}: {error}"
