"""Rank program: every step of the course comes to the numbers of the step before."""

import torch.distributed as dist

from benchmarks.launch import end_rank
from examples.from_scratch import (
    course,
    step1_monolith,
    step2_partition,
    step4_stop_and_wait,
    step5_gpipe,
    step6_one_forward_one_backward,
    step7_asynchronous,
    step9_annopipe,
)


def main():
    dist.init_process_group("gloo")
    one_process = [step1_monolith.train, step2_partition.train]
    orders = [step4_stop_and_wait, step5_gpipe, step6_one_forward_one_backward, step7_asynchronous]
    before = None
    for train in [*one_process, *(step.train for step in orders)]:
        profile = course.Profile()
        found = train(profile)
        assert len(profile.spans) in {2 * course.MICROBATCHES, 8 * course.MICROBATCHES}
        if before is not None:
            course.compare(found, before)
        before = found
    for name in ("1f1b", "gpipe", "zb-h1"):
        course.compare(step9_annopipe.train(name), before)
    peaks = []
    for step in orders:
        _, profiles = course.measured(step.train)
        peaks.append([profile.peak for profile in profiles])
    print(peaks)
    end_rank()


if __name__ == "__main__":
    main()
