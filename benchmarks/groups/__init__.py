"""Process groups for machines without the network, or without the second GPU, that a measurement would need.

`emulated` delays gloo's collectives to a stated bandwidth and latency; `pinned` sends one GPU's messages to itself
through pinned host memory. Both are ordinary torch.distributed backends, so a traced graph runs on them unchanged.
"""
