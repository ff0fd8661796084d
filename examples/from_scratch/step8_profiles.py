"""Step 8: all of them beside each other. Where did the time go, and the memory?

    torchrun --nproc-per-node 4 -m examples.from_scratch.step8_profiles
    HEAD_MS=0 MESSAGE_MS=0 torchrun --nproc-per-node 4 -m examples.from_scratch.step8_profiles

The second line takes away what the formula 1 - m/(m+n-1) knows nothing of: the head, which makes the last rank's
actions longer, so that all others wait for it once per microbatch; and the messages. What is left is the formula's
bubble.
"""

import torch.distributed as dist
from tabulate import tabulate

from examples.from_scratch import (
    course,
    step4_stop_and_wait,
    step5_gpipe,
    step6_one_forward_one_backward,
    step7_asynchronous,
)

STEPS = {
    "stop and wait": step4_stop_and_wait.train,
    "GPipe": step5_gpipe.train,
    "1F1B": step6_one_forward_one_backward.train,
    "1F1B, asynchronous": step7_asynchronous.train,
}


def main() -> None:
    """Profile every step on all ranks."""
    dist.init_process_group("gloo")
    ranks, count = dist.get_world_size(), course.MICROBATCHES
    rows = []
    for name, train in STEPS.items():
        _, profiles = course.measured(train)
        seconds = course.length(profiles)
        computing = [profile.computing for profile in profiles]
        formula = 1 - 1 / ranks if name == "stop and wait" else 1 - count / (count + ranks - 1)
        rows.append(
            (
                name,
                f"{1e3 * seconds:.0f}",
                " ".join(f"{share / seconds:.0%}" for share in computing),
                f"{1 - sum(computing) / (ranks * seconds):.0%}",
                f"{formula:.0%}",
                f"{computing[-1] / computing[0]:.2f}",
                " ".join(str(profile.peak) for profile in profiles),
            )
        )
    if dist.get_rank() == 0:
        heads = ("step", "ms", "ranks compute", "bubble", "formula", "last rank / first", "forwards kept")
        print(tabulate(rows, heads, disable_numparse=True))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
