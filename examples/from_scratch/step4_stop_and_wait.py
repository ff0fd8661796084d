"""Step 4: train over ranks, one microbatch at a time: the naive pipeline, where one rank works and all others wait.

    torchrun --nproc-per-node 4 -m examples.from_scratch.step4_stop_and_wait

Memory is shared out, time is not: a step takes as long as in one process, and the messages on top. With n ranks each
computes for 1/n of the time. The activations of one microbatch are kept.
"""

import torch.distributed as dist

from examples.from_scratch import course
from examples.from_scratch.step2_partition import Stage
from examples.from_scratch.step3_send_receive import receive, send


class Rank:
    """The stage of this rank, with its neighbours: a whole action is receive, compute, send."""

    def __init__(self, profile: course.Profile) -> None:
        self.number, self.ranks = dist.get_rank(), dist.get_world_size()
        self.stage, self.profile = Stage(self.number, self.ranks), profile

    def forward(self, microbatch: int) -> None:
        """From the rank before to the rank behind."""
        stage = self.stage
        given = course.microbatches()[microbatch][0] if stage.first else receive(self.number - 1)
        output = stage.forward(self.profile, microbatch, given)
        if not stage.last:
            send(output, self.number + 1)

    def backward(self, microbatch: int) -> None:
        """From the rank behind to the rank before."""
        stage = self.stage
        gradient = stage.backward(self.profile, microbatch, None if stage.last else receive(self.number + 1))
        if gradient is not None:
            send(gradient, self.number - 1)


def train(profile: course.Profile) -> course.Result:
    """One step: every microbatch goes all the way before the next one starts."""
    rank = Rank(profile)
    for microbatch in range(course.MICROBATCHES):
        rank.forward(microbatch)
        rank.backward(microbatch)
    return rank.stage.result()


if __name__ == "__main__":
    from examples.from_scratch import step2_partition

    course.main("stop and wait", train, before=step2_partition.train)
