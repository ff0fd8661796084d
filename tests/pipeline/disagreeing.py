"""Rank program: what the ranks agree on, and the message when they have different schedules."""

import json

import torch.distributed as dist

import annopipe as ap
from annopipe.pipeline.agreeing import agreed_text
from benchmarks.launch import end_rank

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), dist.group.WORLD
    same = agreed_text("call", 1, group)
    other = agreed_text(f"call of rank {rank}", 1, group)
    try:
        agreed_text("call", rank, group)
        message = ""
    except ap.PipelineError as error:
        message = str(error)
    print(json.dumps([same, other, message]))
    end_rank()
