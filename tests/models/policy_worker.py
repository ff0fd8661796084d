"""One rank that runs every model, routing and lane combination under every policy, and prints what differs from eager.

``python -m tests.models.policy_worker`` under ``run_ranks``: a rank alone holds all experts, without a group; more of
them share the experts. Policy "torch", whose scheduler takes as long as everything else together, runs on the cases
called "pair" only. The output is a line of JSON, ``{"wrong": ..., "idle": ...}``: by case and policy the names of
outputs and gradients that are not bitwise equal to eager autograd; the cases in which no token reaches this rank's
experts. Two further rules of the house are checked on the way, and end the rank if broken: forward, backward and the
two halves of backward equal eager, each on its own (``check_against_eager``).
"""

import dataclasses
import gc
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import annopipe as ap
from annopipe.ordering.planning import problem_of
from benchmarks.launch import end_rank
from tests.graphs.helpers import check_against_eager
from tests.models import cases

SHAPE = (2, 4, cases.HIDDEN)
DENSE = {"gpt": cases.gpt_stage, "mlp": cases.mlp_stage}
# Lanes inside a graph: what is split into how many, of which model. 8 tokens make 3, 3 and 2; 3 sequences 2 and 1.
NANO_BATCHED: tuple[tuple[str, Any, int, int], ...] = (("deepseek", "moe", 3, 2), ("mixtral", "stage", 2, 3))
FOUR_LAYERS = {1: "qwen3", 2: "deepseek", 4: "mixtral"}  # number of ranks: model


@dataclasses.dataclass(frozen=True)
class Lane:
    """A forward or a backward, a value for each of its ports, and what eager autograd computes, by name."""

    graph: ap.StageGraph
    values: dict[str, Any]
    expected: dict[str, Tensor]
    graphs: ap.StageGraphs

    def different(self, result: dict[str, Any]) -> list[str]:
        """Names of what ``result``, this lane's part of a combined graph's, lacks or has otherwise than eager."""
        found = dict(result)
        if self.graph is self.graphs.backward:
            found = {**self.graphs.parameter_gradients(result), "input": result["input_grad.x"]}
        same = {name: name in found and _equal(found[name], value) for name, value in self.expected.items()}
        return [name for name in same if not same[name]]


class Traced:
    """A traced stage with the forward of one microbatch and the backward of another."""

    def __init__(self, stage: nn.Module, seed: int, batch: int = SHAPE[0]) -> None:
        x, y, tangent = cases.rows(seed, 3, batch, *SHAPE[1:])
        graphs = ap.trace(stage, (x.clone().requires_grad_(),))
        assert graphs.backward is not None
        bound = graphs.bind(stage)
        first, second = ({**bound, **graphs.bind_inputs(rows)} for rows in (x, y))
        values = {**first, **graphs.forward(first), "tangent.output": tangent}
        x = x.clone().requires_grad_()
        names = [*(name for name, _ in stage.named_parameters()), "input"]
        gradients = torch.autograd.grad(stage(x), [*stage.parameters(), x], tangent)
        with torch.no_grad():
            output = stage(y)
        self.forward = Lane(graphs.forward, second, {"output": output}, graphs)
        self.backward = Lane(graphs.backward, values, dict(zip(names, gradients, strict=True)), graphs)


def under_policies(
    policies: Iterable[str], lanes: dict[str, Lane], group: dist.ProcessGroup | None
) -> dict[str, list[str]]:
    """What differs from eager when these lanes run as one graph, by policy."""
    both = ap.multiplex(*(lane.graph for lane in lanes.values()), lanes=tuple(lanes))
    values: dict[str, Any] = {}
    for name, lane in lanes.items():
        values |= ap.into_lane(lane.values, name)
    costs = made_up_costs(both)
    wrong: dict[str, list[str]] = {}
    for policy in policies:
        chosen = ap.Search(steps=1_000) if policy == "search" else policy  # with less work: many graphs, short orders
        result = ap.overlap(both, policy=chosen, costs=costs, group=group).run(values)
        wrong[policy] = [
            f"{name}.{value}" for name, lane in lanes.items() for value in lane.different(ap.out_of_lane(result, name))
        ]
    return wrong


def made_up_costs(both: ap.StageGraph) -> dict[str, float]:
    """Seconds for every node, without rhyme, equal on every rank and in every run; transfers take longer."""
    return {
        node.name: (1 + zlib.crc32(node.name.encode()) % 9) * (2e-4 if node.kind == "launch" else 1e-5)
        for node in problem_of(both).nodes
    }


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def combinations(rank: int, ranks: int) -> Iterator[tuple[str, dict[str, Lane]]]:
    """Every case with its lanes. Tracing four layers takes seconds, so each model does it once."""
    group = dist.group.WORLD if ranks > 1 else None
    dense = {name: Traced(build(), seed=100 + rank) for name, build in DENSE.items()}
    for name, traced in dense.items():
        yield f"{name}/pair", {"B": traced.backward, "F": traced.forward}
    for model in cases.MOE:
        for kind in ("balanced", "skewed"):
            stage = cases.moe_stage(model, kind, group=group)
            one = Traced(stage, seed=rank)
            check_against_eager(stage, (cases.rows(rank, *SHAPE).requires_grad_(),), graphs=one.forward.graphs)
            yield f"{model}/{kind}/pair", {"B": one.backward, "F": one.forward}
            yield f"{model}/{kind}/dense forward", {"B": one.backward, "F": dense["gpt"].forward}
            yield f"{model}/{kind}/dense backward", {"B": dense["mlp"].backward, "F": one.forward}
        for split, part, parts, batch in NANO_BATCHED:
            if split == model:
                stage = cases.moe_stage(model, "skewed", 2, group=group, nano_batches=parts, nano_batched=part)
                nano = Traced(stage, seed=rank + 20, batch=batch)
                yield f"{model}/{part} in {parts}/forward", {"F": nano.forward}
                yield f"{model}/{part} in {parts}/backward", {"B": nano.backward}
                yield f"{model}/{part} in {parts}/lanes in lanes", {"B": nano.backward, "F": nano.forward}
        if model == FOUR_LAYERS[ranks]:
            four = Traced(cases.moe_stage(model, "skewed", layers=4, group=group), seed=rank + 10)
            yield f"{model}/skewed/four layers backward", {"B": four.backward, "F": one.forward}
            yield f"{model}/skewed/four layers forward", {"B": one.backward, "F": four.forward}


def main() -> None:
    torch.set_num_threads(1)
    gc.disable()  # collections over the traced graphs would take a fifth of the time
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        dist.init_process_group("gloo")
    wrong: dict[str, dict[str, list[str]]] = {}
    idle: list[str] = []
    for case, lanes in combinations(rank, ranks):
        policies = [name for name in ap.policies() if name != "optimal"]  # which takes small problems only
        if not case.endswith("/pair"):
            policies.remove("torch")
        wrong[case] = under_policies(policies, lanes, dist.group.WORLD if ranks > 1 else None)
        experts = lanes["B"].expected.get("blocks.0.feed.experts.down") if "B" in lanes else None
        if experts is not None and not experts.any():
            idle.append(case)
    print(json.dumps({"wrong": wrong, "idle": idle}), flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
    end_rank()


if __name__ == "__main__":
    main()
