"""Schedules with nano-batches beside the same without: what is chosen, and the phases of their steps."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

import annopipe as ap
from annopipe.ordering.combining import Part, StageNodeCosts, combine
from annopipe.ordering.problem import OverlapProblem
from annopipe.simulation.ranks.phases import PHASES, Phase, phases, steady_state
from benchmarks.moe.case import MoeCase

__all__ = ["Moments", "chosen", "least_exposed_s", "phase_rows"]

# Per round, when warm-up and steady state of this rank ended, and how long the step was on the slowest rank.
Moments = list[tuple[float, float, float]]


def chosen(schedule: ap.Schedule, costs: ap.ActionCosts | None, parts: int) -> tuple[ap.Schedule, str]:
    """The schedule with nano-batches where they pay, and why; rank 0 has the costs and chooses for all ranks."""
    found: list[Any] = [None, ""]
    if costs is not None:
        best = ap.with_nano_batches(schedule, costs, parts)
        found = [best.programs.texts(), best.nano_batching.reason if best.nano_batching else ""]
    dist.broadcast_object_list(found)
    rows, reason = found
    return ap.Schedule.of(schedule.placement, schedule.microbatches, rows, f"{schedule.name} /{parts}"), reason


def least_exposed_s(
    schedule: ap.Schedule, graphs: Mapping[int, ap.StageGraphs], costs: StageNodeCosts, parts: int
) -> float:
    """What warm-up and cool-down expose at least when every microbatch there runs alone, as nano-batches.

    A lower bound for each action: the transfers of all its parts move one after the other, and so does computation;
    each has to wait for what leads to its first piece, and what needs its last comes behind.
    """
    least: dict[tuple[int, str, int], float] = {}
    total = 0.0
    for rank_actions in schedule.ranks:
        steady = steady_state([action.kinds for action in rank_actions])
        for step, action in enumerate(rank_actions):
            if step in steady:
                continue
            for single in action.singles:
                key = id(graphs[single.stage]), single.kind, single.stage if isinstance(costs, Mapping) else 0
                if key not in least:
                    graph = graphs[single.stage].of_kind(single.kind)
                    lanes = [] if graph is None else [Part(single.kind, single.stage, graph, 1.0 / parts)] * parts
                    least[key] = _least_exposed_s(combine(lanes, "sequential", costs).problem) if lanes else 0.0
                total += least[key]
    return total


def _least_exposed_s(problem: OverlapProblem) -> float:
    launches = [node for node in problem.nodes if node.kind == "launch"]
    if not launches:
        return 0.0
    before: list[float] = []  # the longest chain that ends with each node
    for node, earlier in zip(problem.nodes, problem.dependencies, strict=True):
        start = max((before[source] for source in earlier), default=0.0)
        moved = before[node.launch] + problem.nodes[node.launch].cost if node.kind == "wait" else 0.0
        before.append(max(start, moved) + node.thread_time)
    behind = [0.0] * len(problem.nodes)  # the longest chain that begins behind each
    for node in reversed(problem.nodes):
        for user in problem.successors[node.index]:
            moved = problem.nodes[user].cost if problem.nodes[user].kind == "launch" else 0.0
            behind[node.index] = max(behind[node.index], behind[user] + problem.nodes[user].thread_time + moved)
    computing = sum(node.thread_time for node in problem.nodes)
    ends = []
    for own in (launches, [node for node in problem.nodes if node.thread_time and node.kind != "launch"]):
        starts = (before[node.index] - (0.0 if node.kind == "launch" else node.thread_time) for node in own)
        first = min(starts, default=0.0)
        last = min((behind[node.index] for node in own), default=0.0)
        ends.append(first + sum(node.cost for node in own) + last)
    return max(0.0, max(ends) - computing)


def phase_rows(
    timelines: Mapping[str, ap.Timeline], moments: Mapping[str, Moments], case: MoeCase
) -> list[dict[str, Any]]:
    """For each phase its time, measured and simulated, and what it exposes, all pipeline ranks together.

    `timelines` and `moments`: of "before" and "after"; moments are gathered from all ranks, so all of them have to ask.
    """
    measured = {name: _measured(own, case) for name, own in moments.items()}
    simulated: dict[str, Sequence[Phase]] = {name: phases(timeline) for name, timeline in timelines.items()}  # type: ignore[arg-type]
    rows = []
    for place, phase in enumerate(PHASES):
        row: dict[str, Any] = {"phase": phase}
        for name in timelines:
            own = [found for found in simulated[name] if found.name == phase]
            row[name] = {
                "measured_s": sum(rank[place] for rank in measured[name]),
                "simulated_s": sum(found.seconds for found in own),
                "exposed_s": sum(found.exposed for found in own),
                "hidden_s": sum(found.hidden for found in own),
                "by_rank": [
                    {"measured_s": rank[place], **dataclasses.asdict(found)}
                    for rank, found in zip(measured[name], own, strict=True)
                ],
            }
        rows.append(row)
    return rows


def _measured(own: Moments, case: MoeCase) -> list[list[float]]:
    """Seconds of each phase on each pipeline rank: the median of the rounds, of the rank there that takes longest."""
    durations = [
        statistics.median(values)
        for values in zip(*((up, steady - up, end - steady) for up, steady, end in own), strict=True)
    ]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, durations)
    found = []
    for rank in range(case.pipeline_ranks):
        there = [own for place, own in enumerate(everyone) if place // case.expert_ranks % case.pipeline_ranks == rank]
        found.append([max(column) for column in zip(*there, strict=True)])
    return found
