"""A small mixture of experts, and a machine on which its messages take about as long as its computation."""

import dataclasses

import annopipe as ap
from annopipe.costs import Link
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from annopipe.workloads.shipped import experts_model
from tests.costs.toy import TOY

CONFIG = dataclasses.replace(DeepSeekV3Config.small(), vocabulary=256, layers=4, dense_layers=1)
SPEC = experts_model("small", CONFIG, DeepSeekV3Stage)
FAST = dataclasses.replace(TOY, host_read_s=0.0, collective_issue_s=0.0)


def machine(link_bytes_per_s: float = 5e9, ranks_per_node: int = 2) -> ap.costs.Hardware:
    return dataclasses.replace(
        FAST,
        inside=Link(10 * link_bytes_per_s, fraction=1.0, hop_s=0.0),
        between=Link(link_bytes_per_s, fraction=1.0, hop_s=0.0),
        collective_start_s=0.0,
        ranks_per_node=ranks_per_node,
    )
