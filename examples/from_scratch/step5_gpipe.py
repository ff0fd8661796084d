"""Step 5: GPipe (arXiv 1811.06965): all forwards, then all backwards.

    torchrun --nproc-per-node 4 -m examples.from_scratch.step5_gpipe

While rank 1 has the first microbatch, rank 0 has the second: the ranks compute at the same time, but for the beginning
and the end. With m microbatches, n ranks and equal stages a step is m + n - 1 turns long, m of which a rank computes:
the bubble is 1 - m/(m+n-1). The price: activations of all microbatches are kept until the last forward is done.
"""

from examples.from_scratch import course
from examples.from_scratch.step4_stop_and_wait import Rank


def train(profile: course.Profile) -> course.Result:
    """One step."""
    rank = Rank(profile)
    for microbatch in range(course.MICROBATCHES):
        rank.forward(microbatch)
    for microbatch in range(course.MICROBATCHES):
        rank.backward(microbatch)
    return rank.stage.result()


if __name__ == "__main__":
    from examples.from_scratch import step4_stop_and_wait

    course.main("GPipe", train, before=step4_stop_and_wait.train)
