"""Overlap without a pipeline: nano-batches inside one graph, for data and expert parallel training, or inference.

    python -m examples.nano_batches                                   # one process
    torchrun --nproc-per-node 2 -m examples.nano_batches              # experts on two ranks

The layer runs its experts on two halves of the batch, one after the other, as the loop says. In the graph they are two
lanes: the dispatch of one moves while the experts of the other compute. The results are those of the loop, bit by bit.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn

import annopipe as ap

WIDTH, ROWS = 256, 512
# What a node takes in the plan: a slow network beside a processor, so that there is something to hide.
PRODUCT_S, TRANSFER_S, OTHER_S = 2e-3, 3e-3, 1e-5


class Layer(nn.Module):
    """A dense part, and experts in two nano-batches."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        with ap.region("dense"):
            x = x + self.dense(x).relu()
        parts = []
        for part in ap.nano_batches(x, 2):  # this line makes lanes 0 and 1
            with ap.comm("dispatch"):
                rows = fc.all_to_all_single_autograd(part, None, None, dist.group.WORLD)
            with ap.region("experts"):
                rows = self.down(self.up(rows).relu())
            with ap.comm("combine"):
                rows = fc.all_to_all_single_autograd(rows, None, None, dist.group.WORLD)
            parts.append(part + rows)
        return torch.cat(parts)


def slow_network(graph: ap.StageGraph) -> ap.NodeCosts:
    """Costs by kind of node; on real ranks `ap.costs.measure(graph, values, group)` has them."""
    seconds = {}
    for row in ap.region_table(graph):
        is_product = "mm" in row.node.name
        seconds[row.node.name] = TRANSFER_S if row.kind == "launch" else PRODUCT_S if is_product else OTHER_S
    return ap.NodeCosts(seconds)


def main() -> None:
    """Plan forward and backward, run them, and compare with eager."""
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(ROWS, WIDTH)
    graphs = ap.trace(layer, (x.clone().requires_grad_(),))
    plans = {}
    for name, graph in (("forward", graphs.forward), ("backward", graphs.backward)):
        for policy in ("sequential", "auto"):
            plan = ap.overlap(graph, policy=policy, costs=slow_network(graph), group=dist.group.WORLD)
            time_ms, hidden = plan.timeline.makespan * 1e3, plan.timeline.hidden_share
            if dist.get_rank() == 0:
                print(f"{name:<9}{policy:<11}{time_ms:6.1f} ms simulated, {hidden:4.0%} hidden")
        plans[name] = plan

    values = {**graphs.bind(layer), **graphs.bind_inputs(x)}
    values |= plans["forward"].run(values)
    values["tangent.output"] = torch.ones_like(x)
    gradients = graphs.parameter_gradients(plans["backward"].run(values))
    expected = layer(x)
    expected.backward(torch.ones_like(x))
    same = torch.equal(graphs.result(values), expected)
    same &= all(torch.equal(gradients[name], parameter.grad) for name, parameter in layer.named_parameters())
    if dist.get_rank() == 0:
        print(f"output and gradients are those of eager: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
