"""Write a policy: a function that orders the nodes of a combined graph, beside the policies that are there.

    python -m examples.write_policy

A policy sees an `ap.OverlapProblem`: nodes with their region, lane, kind and cost, and what must come before what. It
returns an order, which is proved legal before it is used, so that results cannot change. Here the backward of one
microbatch runs beside the forward of the next, for a layer of a 16B model over 16 H100s; nothing of it has to be there,
and all times are simulated.
"""

import torch
import torch.distributed as dist

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage

EXPERT_RANKS, SEQUENCES, LENGTH = 16, 8, 512
LATE = 0.3  # how much later than its place in program order a wait comes, as a share of its lane


@ap.policy
def launches_first(problem: ap.OverlapProblem) -> list[int]:
    """Start transfers as soon as their data are there, wait late, and let the lanes advance side by side."""
    total = {lane: sum(node.cost for node in problem.nodes if node.lane == lane) for lane in problem.lanes}
    done = dict.fromkeys(problem.lanes, 0.0)
    urgency = []  # the smallest that may run comes next
    for node in problem.nodes:
        done[node.lane] += node.cost / total[node.lane]  # 0 to 1, so that both lanes end together
        urgency.append({"launch": -1.0, "wait": done[node.lane] + LATE}.get(node.kind, done[node.lane]))
    return problem.topological(urgency)


def pair() -> ap.StageGraph:
    """A backward and a forward of one layer as one graph, traced on a process group that is not there."""
    config = DeepSeekV3Config.v3_16b()
    stage = DeepSeekV3Stage(config, [1], dist.group.WORLD, device="meta", dtype=torch.bfloat16)
    x = torch.empty(SEQUENCES, LENGTH, config.hidden, device="meta", dtype=torch.bfloat16, requires_grad=True)
    graphs = ap.trace(stage, (x,))
    return ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))


def main() -> None:
    """Plan the pair by several policies, and print what each hides."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=EXPERT_RANKS)
    both = pair()
    costs = ap.costs.roofline(both, "h100", fused=True)
    print(f"{'policy':<16}{'simulated ms':>14}{'hidden':>8}")
    for name in ("sequential", "alternate", "dualpipe", "launches_first", "auto"):
        timeline = ap.overlap(both, policy=name, costs=costs).timeline
        print(f"{name:<16}{timeline.makespan * 1e3:>14.2f}{timeline.hidden_share:>8.0%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
