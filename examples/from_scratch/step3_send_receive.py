"""Step 3: a stage on every rank. What leaves one has to be sent, and received with the right shape.

    torchrun --nproc-per-node 4 -m examples.from_scratch.step3_send_receive

Only the forward of one microbatch: rank 0 computes and sends, rank 1 receives, computes, sends. Both calls are
blocking: ``send`` comes back when the message has been delivered. A receiver has to know shape and type beforehand.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from examples.from_scratch import course
from examples.from_scratch.step2_partition import Stage


def stamped(values: Tensor) -> Tensor:
    """A message: the values and, behind them, the moment at which they arrive."""
    arrival = time.perf_counter() + course.MESSAGE_S
    return torch.cat([values.flatten(), torch.tensor([arrival], dtype=torch.float64)])


def empty_message() -> Tensor:
    """What a message is received into."""
    return torch.empty(course.ROWS * course.WIDTH + 1, dtype=torch.float64)


def arrived(message: Tensor) -> Tensor:
    """The values [rows, width] of a message, once it has arrived."""
    course.wait_until(message[-1].item())
    return message[:-1].reshape(course.ROWS, course.WIDTH)


def send(values: Tensor, to: int) -> None:
    """Send, and wait until it has arrived."""
    message = stamped(values)
    dist.send(message, to)
    arrived(message)


def receive(source: int) -> Tensor:
    """The values that another rank sends."""
    message = empty_message()
    dist.recv(message, source)
    return arrived(message)


def main() -> None:
    """One microbatch through the stages of all ranks, beside the whole model."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage, profile = Stage(rank, ranks), course.Profile()
    rows, classes = course.microbatches()[0]
    output = stage.forward(profile, 0, rows if stage.first else receive(rank - 1))
    if not stage.last:
        send(output, rank + 1)
    else:
        expected = course.loss_of(course.whole_model()(rows), classes)
        torch.testing.assert_close(output, expected.detach(), rtol=0, atol=0)
        print(f"loss {output.item():.12f} behind {ranks} ranks, equal to the whole model's")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
