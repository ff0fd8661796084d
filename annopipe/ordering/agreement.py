"""Ranks agree on one order before a plan is built, and prove it before the plan first runs.

A collective that one rank issues first and another second hangs both, so the order of launches has to be the same on
all ranks of each process group. Ranks may hold different graphs (uneven shards pad on one rank only), so what is
compared is the sequence of collectives, not the list of nodes.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from annopipe.errors import AnnopipeError, OrderError
from annopipe.graphs.process_groups import group_by_name, is_distributed
from annopipe.ordering.problem import OverlapProblem

__all__ = ["agree", "check_same_sequence", "launch_tokens"]


@dataclasses.dataclass(frozen=True)
class _Proposal:
    structure: str
    order: tuple[int, ...]
    tokens: tuple[str, ...]
    error: str = ""


def agree(problem: OverlapProblem, propose: Callable[[], list[int]], group: dist.ProcessGroup | None) -> list[int]:
    """The order that all ranks of ``group`` use: that of its first rank, which every rank gets.

    Where the ranks' graphs differ, each rank keeps its own order as far as the first rank's sequence of launches
    allows.

    Raises:
        OrderError: a policy failed on any rank, or the ranks have different collectives; on every rank.
    """
    if group is None:
        return propose()
    mine = _proposal(problem, propose)
    everyone = _gather(mine, group)
    failed = [f"rank {rank}: {p.error}" for rank, p in enumerate(everyone) if p.error]
    if failed:
        raise OrderError(f"the policy failed on {len(failed)} of {len(everyone)} ranks of the group; {failed[0]}")
    first = everyone[0]
    if all(p.structure == first.structure for p in everyone):
        return list(first.order)
    for rank, proposal in enumerate(everyone):
        if sorted(proposal.tokens) != sorted(first.tokens):
            differing = sorted(set(proposal.tokens) ^ set(first.tokens)) or [
                "the same ones a different number of times"
            ]
            raise OrderError(
                f"rank 0 and rank {rank} of the group have different collectives: {', '.join(differing[:4])}"
            )
    try:
        followed, error = _follow(problem, mine, first.tokens), ""
    except OrderError as failure:
        followed, error = [], str(failure)
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(_gather(error, group)) if text]
    if failed:
        raise OrderError(f"a rank cannot follow the first rank's sequence of collectives; {failed[0]}")
    return followed


def check_same_sequence(problem: OverlapProblem, order: Sequence[int]) -> None:
    """Compare the sequence of collectives of every process group across that group.

    Raises:
        OrderError: it differs between ranks; on every rank of the group, before anything has been launched.
    """
    if not is_distributed():
        return
    for queue, alias in sorted(_aliases(problem).items()):
        group = group_by_name(queue)
        tokens = [t for t in launch_tokens(problem, order) if t.startswith(f"{alias}:")]
        digest = hashlib.sha256("\n".join(tokens).encode()).hexdigest()
        digests = _gather((digest, len(tokens)), group)
        if len(set(digests)) > 1:
            found = ", ".join(f"rank {r}: {n} collectives, {d[:8]}" for r, (d, n) in enumerate(digests))
            raise OrderError(
                f"the ranks of process group {queue} would issue different sequences of collectives and hang "
                f"({found}); plan with ap.overlap(..., group=...), so that they agree on one order"
            )


def launch_tokens(problem: OverlapProblem, order: Sequence[int]) -> tuple[str, ...]:
    """The launches of an order as texts that mean the same on every rank: group, lane, region, phase, occurrence.

    Groups count by first appearance, since ranks of different expert-parallel groups have different names for theirs.
    """
    alias = _aliases(problem)
    numbers: dict[int, str] = {}
    seen: dict[str, int] = {}
    for node in problem.nodes:  # numbered in program order, so that a token names the same collective in every order
        if node.kind == "launch":
            label = f"{alias[node.queue]}:{node.lane}/{node.region}/{node.phase}"
            seen[label] = seen.get(label, 0) + 1
            numbers[node.index] = f"{label}#{seen[label]}"
    return tuple(numbers[index] for index in order if index in numbers)


def _proposal(problem: OverlapProblem, propose: Callable[[], list[int]]) -> _Proposal:
    alias = _aliases(problem)
    structure = repr([(n.name, n.kind, alias.get(n.queue)) for n in problem.nodes]) + repr(problem.dependencies)
    digest = hashlib.sha256(structure.encode()).hexdigest()
    try:
        order = propose()
    except AnnopipeError as error:  # the other ranks must hear of it, or they would wait for this one
        return _Proposal(digest, (), (), str(error))
    return _Proposal(digest, tuple(order), launch_tokens(problem, order))


def _follow(problem: OverlapProblem, mine: _Proposal, tokens: tuple[str, ...]) -> list[int]:
    own = [index for index in mine.order if problem.nodes[index].kind == "launch"]
    by_token = dict(zip(mine.tokens, own, strict=True))
    chained = problem.with_sequence(by_token[token] for token in tokens)
    place = {index: float(position) for position, index in enumerate(mine.order)}
    return chained.topological([place[index] for index in range(len(problem.nodes))])


def _aliases(problem: OverlapProblem) -> dict[str, str]:
    queues = dict.fromkeys(node.queue for node in problem.nodes if node.kind == "launch")
    return {queue: f"group {number}" for number, queue in enumerate(queues)}


def _gather(item: Any, group: dist.ProcessGroup) -> list[Any]:
    results: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(results, item, group=group)
    return results
