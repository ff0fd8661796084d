"""Ranks agree on one order before a plan is built, and prove it before the plan first runs.

A collective that one rank issues first and another second hangs both, so the order of launches has to be the same on
all ranks of each process group. Ranks may hold different graphs (uneven shards pad on one rank only), so what is
compared is the sequence of collectives, not the list of nodes.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

import torch.distributed as dist

from annopipe.errors import AnnopipeError, OrderError
from annopipe.graphs.process_groups import group_by_name, is_distributed
from annopipe.ordering.gathering import gather, gather_digests
from annopipe.ordering.problem import OverlapProblem

__all__ = ["Choice", "agree", "check_same_sequence", "launch_tokens", "most_ranks"]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A problem, the order that was chosen for it, the name of the policy that chose it, and why."""

    problem: OverlapProblem
    order: tuple[int, ...]
    policy: str
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class _Proposal:
    structure: str = ""
    order: tuple[int, ...] = ()
    policy: str = ""
    reason: str = ""
    tokens: tuple[str, ...] = ()
    error: str = ""


def agree(choose: Callable[[], Choice], group: dist.ProcessGroup | None) -> Choice:
    """The choice that all ranks of ``group`` use: that of its first rank, for this rank's own problem.

    Where the ranks' graphs differ, each rank keeps its own order as far as the first rank's launches allow.

    Raises:
        AnnopipeError: what ``choose`` raised on this rank.
        OrderError: ``choose`` failed on another rank, or the ranks have different collectives; on every rank. Or
            ``group`` is no process group of this rank.
    """
    if group is None:
        return choose()
    if not isinstance(group, dist.ProcessGroup):
        raise OrderError(
            f"group={group!r}: give a process group that this rank is in, as dist.new_group returns to its members"
        )
    mine, proposal, failure = _propose(choose)
    everyone = gather(proposal, group)
    if failure is not None:
        raise failure
    _raise_if_any("planning failed", [p.error for p in everyone])
    first = everyone[0]
    if mine is None:
        raise OrderError("planning gave neither an order nor an error")
    if all(p.structure == first.structure for p in everyone):
        return Choice(mine.problem, first.order, first.policy, first.reason)
    for rank, other in enumerate(everyone):
        if sorted(other.tokens) != sorted(first.tokens):
            differing = sorted(set(other.tokens) ^ set(first.tokens)) or ["the same ones a different number of times"]
            raise OrderError(
                f"rank 0 and rank {rank} of the group have different collectives: {', '.join(differing[:4])}"
            )
    try:
        order, error = _follow(mine, proposal, first.tokens), ""
    except OrderError as unfollowed:
        order, error = (), str(unfollowed)
    _raise_if_any("a rank cannot follow the first rank's sequence of collectives", gather(error, group))
    return Choice(mine.problem, order, first.policy, first.reason)


def check_same_sequence(problem: OverlapProblem, order: Sequence[int]) -> None:
    """Compare the sequence of collectives of every process group across that group.

    Raises:
        OrderError: it differs between ranks, or a rank of the group does not take part within a minute; on every rank
            of the group, before anything has been launched.
    """
    if not is_distributed():
        return
    different = []
    queues = sorted(_aliases(problem))
    members = {queue: tuple(dist.get_process_group_ranks(group_by_name(queue))) for queue in queues}
    for queue in queues:  # all of them before any error: others wait for this rank
        # Groups of the same ranks count together: each in its own order, crossed, they can wait for each other.
        together = {other for other in queues if members[other] == members[queue]}
        digests = gather_digests(_labels(problem, order, together), queue)
        if len(set(digests)) > 1:
            different.append((queue, digests))
    for queue, digests in different:
        found = ", ".join(f"rank {rank}: {count} collectives, {digest}" for rank, (count, digest) in enumerate(digests))
        raise OrderError(
            f"the ranks of process group {queue} would issue different sequences of collectives and hang "
            f"({found}); plan with ap.overlap(..., group=...), so that they agree on one order"
        )


def most_ranks(problem: OverlapProblem) -> int:
    """The ranks of the largest process group on which a problem launches anything; 1 outside of any."""
    if not is_distributed():
        return 1
    sizes = [len(dist.get_process_group_ranks(group_by_name(queue))) for queue in _aliases(problem)]
    return max(sizes, default=1)


def launch_tokens(problem: OverlapProblem, order: Sequence[int]) -> tuple[str, ...]:
    """The launches of an order as texts that mean the same on every rank.

    Each is group, lane, region, phase, operation and occurrence. Groups count by first appearance, since ranks of
    different expert-parallel groups have different names for theirs.
    """
    alias = _aliases(problem)
    return tuple(f"{alias[queue]}: {label}" for queue, label in _numbered(problem, order))


def _labels(problem: OverlapProblem, order: Sequence[int], queues: set[str]) -> list[str]:
    """The launches on some groups, in order; groups count by first appearance among these."""
    found = [(queue, label) for queue, label in _numbered(problem, order) if queue in queues]
    number = {queue: index for index, queue in enumerate(sorted(queues))}
    return [f"{number[queue]}: {label}" for queue, label in found]


def _numbered(problem: OverlapProblem, order: Sequence[int]) -> list[tuple[str, str]]:
    labels: dict[int, tuple[str, str]] = {}
    seen: dict[tuple[str, str], int] = {}
    for node in problem.nodes:  # numbered in program order, so that a text names the same collective in every order
        if node.kind == "launch":
            label = f"{node.lane}/{node.region}/{node.phase}/{node.operation}"
            seen[node.queue, label] = seen.get((node.queue, label), 0) + 1
            labels[node.index] = node.queue, f"{label}#{seen[node.queue, label]}"
    return [labels[index] for index in order if index in labels]


def _propose(choose: Callable[[], Choice]) -> tuple[Choice | None, _Proposal, AnnopipeError | None]:
    try:
        choice = choose()
    except AnnopipeError as error:  # the other ranks must hear of it, or they would wait for this one
        return None, _Proposal(error=f"{type(error).__name__}: {error}"), error
    problem, alias = choice.problem, _aliases(choice.problem)
    nodes = [(n.name, n.kind, alias.get(n.queue), n.operation) for n in problem.nodes]
    structure = hashlib.sha256((repr(nodes) + repr(problem.dependencies)).encode()).hexdigest()
    tokens = launch_tokens(problem, choice.order)
    return choice, _Proposal(structure, choice.order, choice.policy, choice.reason, tokens), None


def _follow(mine: Choice, proposal: _Proposal, tokens: tuple[str, ...]) -> tuple[int, ...]:
    own = [index for index in mine.order if mine.problem.nodes[index].kind == "launch"]
    by_token = dict(zip(proposal.tokens, own, strict=True))
    place = {index: float(position) for position, index in enumerate(mine.order)}
    rank = [place[index] for index in range(len(mine.problem.nodes))]
    return tuple(mine.problem.topological(rank, chain=[by_token[token] for token in tokens]))


def _raise_if_any(what: str, errors: Sequence[str]) -> None:
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(errors) if text]
    if failed:
        raise OrderError(f"{what} on {len(failed)} of {len(errors)} ranks of the group; {failed[0]}")


def _aliases(problem: OverlapProblem) -> dict[str, str]:
    queues = dict.fromkeys(node.queue for node in problem.nodes if node.kind == "launch")
    return {queue: f"group {number}" for number, queue in enumerate(queues)}
