"""How long planning takes: multiplex, policy, proof, relinking and code generation for a graph of 10,000 nodes.

    annopipe bench planning          (annopipe/cli/planning.py has its options)

One traced MoE block is chained to itself until forward and backward together have as many nodes, since tracing that
many blocks would take half a minute and is not what is timed.
"""

import dataclasses
import gc
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

import annopipe as ap
from annopipe.graphs import meta
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes, output_nodes
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from annopipe.ordering.describing import problem_of

__all__ = ["Seconds", "chained", "measure"]


Seconds = dict[str, dict[str, list[float]]]  # by policy and step, one number per round


def measure(nodes: int, rounds: int, names: Sequence[str] = ()) -> tuple[int, Seconds]:
    """The size of a combined graph of at least ``nodes`` nodes, and how long planning it takes, on one thread.

    Args:
        rounds: repetitions, the policies in alternation.
        names: policies; all but "torch" and "optimal" when left out.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        forward, backward = _graphs(nodes)
        costs = _made_up_costs(ap.multiplex(backward, forward, lanes=("B", "F")))
        gc.freeze()  # as after capture: a full collection over the traced graphs would fall into a measurement
        times: Seconds = {}
        size = 0
        for _ in range(rounds):
            for name in names or [known for known in ap.policies() if known not in ("torch", "optimal")]:
                plan, seconds = _plan(backward, forward, name, costs)
                size = len(plan.order)
                for step, value in seconds.items():
                    times.setdefault(name, {}).setdefault(step, []).append(value)
        return size, times
    finally:
        dist.destroy_process_group()


def _plan(
    backward: StageGraph, forward: StageGraph, name: str, costs: ap.NodeCosts
) -> tuple[ap.OverlapPlan, dict[str, float]]:
    started = time.perf_counter()
    both = ap.multiplex(backward, forward, lanes=("B", "F"))
    plan = ap.overlap(both, policy=name, costs=costs)
    planned = time.perf_counter()
    plan.graph.module.forward  # noqa: B018 - generates the code
    ready = time.perf_counter()
    return plan, {"plan": planned - started, "code": ready - planned, "all": ready - started}


def _graphs(nodes: int) -> tuple[StageGraph, StageGraph]:
    stage = DeepSeekV3Stage(DeepSeekV3Config.tiny(), layers=[0], group=dist.group.WORLD)
    graphs = ap.trace(stage, (torch.zeros(2, 8, 32, requires_grad=True),))
    if graphs.backward is None:
        raise ap.GraphError("the block has no backward: its parameters must require grad")
    per_block = len(body(graphs.forward.graph)) + len(body(graphs.backward.graph))
    copies = -(-nodes // per_block)
    forward = chained(graphs.forward, copies, "output", "input.x")
    return forward, chained(graphs.backward, copies, "input_grad.x", "tangent.output")


def chained(graph: StageGraph, copies: int, result: str, argument: str) -> StageGraph:
    """``graph`` behind itself: the value of port ``result`` of one copy is port ``argument`` of the next."""
    joined = fx.Graph()
    first = {p.name: joined.placeholder(node.name) for p, node in _named_inputs(graph)}
    environments: list[dict[fx.Node, Any]] = []
    for number in range(copies):
        environment: dict[fx.Node, Any] = {node: first[port.name] for port, node in _named_inputs(graph)}
        if number:
            previous = dict(zip((p.name for p in graph.outputs), output_nodes(graph.graph), strict=True))[result]
            into = next(node for port, node in _named_inputs(graph) if port.name == argument)
            environment[into] = environments[-1][previous]
        for node in body(graph.graph):
            copy = environment[node] = joined.node_copy(node, environment.__getitem__)
            place = meta.placed(node)
            meta.set_placement(copy, dataclasses.replace(place, key=f"{number}.{place.key}"))
        environments.append(environment)
    ports = [dataclasses.replace(p, name=f"{n}.{p.name}") for n in range(copies) for p in graph.outputs]
    joined.output(tuple(env[node] for env in environments for node in output_nodes(graph.graph)))
    return StageGraph(joined, graph.inputs, ports, attributes=graph.attributes)


def _named_inputs(graph: StageGraph) -> list[tuple[Port, fx.Node]]:
    return list(zip(graph.inputs, input_nodes(graph.graph), strict=True))


def _made_up_costs(both: StageGraph) -> ap.NodeCosts:
    """Communication about equal to computation, so that the policy has something to decide."""
    problem = problem_of(both)
    launches = [node.name for node in problem.nodes if node.kind == "launch"]
    each = len(problem.nodes) * 1e-5 / max(1, len(launches))
    issue: dict[str, float] = dict.fromkeys(launches, 1e-5)
    return ap.NodeCosts({node.name: 1e-5 if node.kind != "launch" else each for node in problem.nodes}, {}, issue)
