"""Tag a model: put its regions under context managers, trace it, and see which nodes of the graphs carry which tag.

    python -m examples.tag_model

A layer of a mixture of experts, written as one writes it, plus one line for each region. The tags cost nothing when
the layer runs; they matter when `ap.trace` makes graphs of it. Backward nodes carry the region of the forward operation
that they belong to.
"""

from collections import defaultdict

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn

import annopipe as ap


class Layer(nn.Module):
    """Attention, and experts that are on other ranks."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.router, self.expert = nn.Linear(width, experts), nn.Linear(width, width)

    @ap.region("attention")  # a decorator, for a whole method
    def attend(self, x: Tensor) -> Tensor:
        """Self-attention over the rows."""
        scores = self.query(x) @ self.key(x).T
        return x + scores.softmax(-1) @ self.value(x)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        x = self.attend(x)
        with ap.region("moe"):  # nested regions make a path, "moe/router"
            with ap.region("router"):
                weight = self.router(x).softmax(-1).amax(-1, keepdim=True)
            with ap.comm("dispatch"):  # a region whose purpose is communication
                rows = fc.all_to_all_single_autograd(x, None, None, dist.group.WORLD)
            with ap.region("experts"):
                rows = self.expert(rows).relu()
            with ap.comm("combine"):
                rows = fc.all_to_all_single_autograd(rows, None, None, dist.group.WORLD)
            return x + rows * weight


def kinds(graph: ap.StageGraph) -> dict[str, str]:
    """What the nodes of every region are: compute, launch (a collective starts), wait (it ends), host."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in ap.region_table(graph):
        found[row.region].add(row.kind)
    return {region: ", ".join(sorted(there)) for region, there in found.items()}


def main() -> None:
    """Trace the layer, and print a line per region."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: only "gloo"
    graphs = ap.trace(Layer(), (torch.randn(8, 16, requires_grad=True),))
    forward, backward = kinds(graphs.forward), kinds(graphs.backward)
    print(f"{'region':<16}{'forward':<16}backward")
    for region, there in forward.items():
        print(f"{region:<16}{there:<16}{backward[region]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
