"""Check a schedule, rule by rule; the first that is broken raises an error with rank, step, action, and what to do."""

from collections.abc import Sequence
from numbers import Real

from annopipe.errors import CostError, ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.checking.combinations import parts_are_independent
from annopipe.scheduling.checking.deadlock import no_deadlock
from annopipe.scheduling.checking.facts import Facts
from annopipe.scheduling.checking.memory import fits_in_memory
from annopipe.scheduling.checking.message_order import messages_arrive_in_order, pairs_agree
from annopipe.scheduling.checking.messages import messages_in_place, messages_match
from annopipe.scheduling.checking.nano_batches import nano_batches_agree
from annopipe.scheduling.checking.once import nothing_missing, nothing_twice
from annopipe.scheduling.checking.operations_in_place import operations_in_place
from annopipe.scheduling.checking.own_order import forward_before_backward, whole_batch_first
from annopipe.scheduling.checking.ownership import own_microbatches_only, own_stages_only
from annopipe.scheduling.checking.parameters import gradients_reduced_last, unsharded_when_used
from annopipe.scheduling.checking.rendezvous import messages_meet
from annopipe.scheduling.operations import Operation
from annopipe.scheduling.programs import Programs

__all__ = ["RULES", "check"]

# In this order: later rules take for granted what earlier ones found.
RULES = (
    own_stages_only,
    own_microbatches_only,
    nothing_twice,
    nothing_missing,
    nano_batches_agree,
    parts_are_independent,
    forward_before_backward,
    whole_batch_first,
    messages_match,
    messages_in_place,
    messages_arrive_in_order,
    no_deadlock,
    unsharded_when_used,
    gradients_reduced_last,
)


def check(
    programs: Programs,
    *,
    memory: float | None = None,
    costs: ActionCosts | None = None,
    rendezvous: bool = False,
    operations: Sequence[Operation] = (),
) -> None:
    """Raise ScheduleError when programs cannot be run, or do not compute what a step of training (or a forward) is.

    Programs with messages and without are checked; without, messages are taken to be sent as soon as they can be.

    Args:
        programs: what every rank does.
        memory: how much of activations a rank may keep, in the unit of `costs.activation`; None is any amount.
        costs: what each stage's activation takes; without it one microbatch on one stage takes 1.
        rendezvous: also ask that both ranks of each pair have their messages in one order, and that no ranks wait for
            each other in a ring, which a transport needs in which a send waits for its receive. Lowering makes such
            schedules.
        operations: those that are declared have to be there, in their places; others may be anywhere.

    >>> from annopipe.scheduling import placement
    >>> check(Programs.of(placement.linear(2), 1, [["0F0", "0B0"], ["1F0", "1B0"]]))
    >>> check(Programs.of(placement.linear(1), 1, [["0B0", "0F0"]]))
    Traceback (most recent call last):
    ...
    annopipe.errors.ScheduleError: rank 0, step 0: 0B0 is in front of 0F0 (step 1); put 0F0 first: a backward needs \
what its forward left
    <BLANKLINE>
                step 0   step 1
    -> rank 0   0B0      0F0
                ^        ^
    """
    # A comparison with NaN is never true.
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, Real) or not memory >= 0):
        raise ScheduleError(f"memory={memory!r}: give the activations that a rank may keep, 0 or more")
    used = ActionCosts() if costs is None else costs
    if not isinstance(used, ActionCosts):
        raise CostError(f"costs is {costs!r}; make them with annopipe.costs.table")
    facts = Facts.of(programs)
    for rule in RULES:
        rule(facts)
    operations_in_place(facts, operations)
    if rendezvous:
        pairs_agree(facts)
        messages_meet(facts)
    if memory is not None:
        used.refuse_other_stages(programs.numbering)
        fits_in_memory(facts, memory, used, operations)
