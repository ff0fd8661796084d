"""What steps hold in memory, from the values of the problem whose nodes they stand for.

It errs on the safe side: a wait is not one of the steps, so what its launch sends counts as held until all steps that
need the transfer are over.
"""

import dataclasses

from annopipe.ordering.coarsening import Coarse
from annopipe.ordering.problem import OverlapProblem, Value
from annopipe.ordering.search.steps import StepBytes, Steps

__all__ = ["with_bytes"]


def with_bytes(steps: Steps, coarse: Coarse, problem: OverlapProblem) -> Steps:
    """The steps of ``coarse`` with what they hold of ``problem.values``."""
    if not problem.values:
        return steps
    stands, makers = _steps_of_nodes(steps, coarse)
    made, internal = [0] * len(steps), list[Value]()
    sizes, users, inputs = list[int](), list[tuple[int, ...]](), 0
    for value in problem.values:
        using = sorted({step for node in value.used_by for step in stands[node]})
        waited = all(stands[node] for node in value.used_by)  # else until a wait that no step needs
        maker = makers[value.made_by] if value.made_by >= 0 else -1
        if maker >= 0 and not value.kept and waited and set(using) <= {maker}:
            internal.append(value)
            continue
        if maker >= 0:
            made[maker] += value.size_bytes
        else:
            inputs += value.size_bytes
        if using and waited and not value.kept:
            sizes.append(value.size_bytes)
            users.append(tuple(using))
    transient = _transient(steps, coarse, problem, internal)
    return dataclasses.replace(
        steps, memory=StepBytes(inputs, tuple(made), tuple(transient), tuple(sizes), tuple(users))
    )


def _steps_of_nodes(steps: Steps, coarse: Coarse) -> tuple[dict[int, tuple[int, ...]], dict[int, int]]:
    """The steps at which each node uses something, and that at which it makes something.

    A wait does the one at all steps that need its transfer, and the other at its launch.
    """
    number = {piece: step for step, piece in enumerate(steps.nodes)}
    needing: dict[int, list[int]] = {}
    for step, launches in enumerate(steps.needs):
        for launch in launches:
            needing.setdefault(launch, []).append(step)
    found: dict[int, tuple[int, ...]] = {}
    makers: dict[int, int] = {}
    for piece, members in enumerate(coarse.members):
        node = coarse.problem.nodes[piece]
        maker = number[piece] if piece in number else number[node.launch]
        makers.update(dict.fromkeys(members, maker))
        found.update(dict.fromkeys(members, (maker,) if piece in number else tuple(needing.get(maker, ()))))
    return found, makers


def _transient(steps: Steps, coarse: Coarse, problem: OverlapProblem, internal: list[Value]) -> list[int]:
    """The peak during each step of what it makes, for others and for itself."""
    grows, shrinks = [0] * len(problem.nodes), [0] * len(problem.nodes)
    for value in problem.values:
        if value.made_by >= 0:
            grows[value.made_by] += value.size_bytes
    for value in internal:
        shrinks[max([value.made_by, *value.used_by])] += value.size_bytes
    peaks = []
    for piece in steps.nodes:
        live = peak = 0
        for node in coarse.members[piece]:
            live += grows[node]
            peak = max(peak, live)
            live -= shrinks[node]
        peaks.append(peak)
    return peaks
