"""Step 9: the same model through annopipe. The lines of ``train`` are all there is.

    torchrun --nproc-per-node 4 -m examples.from_scratch.step9_annopipe
    torchrun --nproc-per-node 4 -m examples.from_scratch.step9_annopipe zb-h1

Cutting, messages, microbatches, order: any schedule by its name, no backward by hand. And before anything runs, the
schedule simulates with the durations of the course, to be compared with what the steps before measured.
"""

import sys

import torch.distributed as dist

import annopipe as ap
from examples.from_scratch import course, step7_asynchronous


def schedule_of(name: str) -> ap.Schedule:
    """A schedule of one stage per rank for the microbatches of the course."""
    return ap.schedule(name, ranks=dist.get_world_size(), microbatches=course.MICROBATCHES)


def train(name: str) -> course.Result:
    """One step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows, classes = course.batch()
    cuts = [str(course.BLOCKS * stage // ranks) for stage in range(1, ranks)]
    stages = ap.split(course.whole_model(), at=cuts)
    mine = [stage if number == rank else None for number, stage in enumerate(stages)]
    pipe = ap.Pipeline(mine, schedule_of(name), loss_fn=course.loss_of)
    losses = pipe.step(rows, target=classes)
    gradients = {name: given.grad for name, given in stages[rank].named_parameters() if given.grad is not None}
    return course.Result(None if losses is None else sum(loss.item() for loss in losses), gradients)


def simulated_s(name: str) -> float:
    """Seconds of a step with the durations of the course."""
    blocks = [course.BLOCKS // dist.get_world_size() * course.BLOCK_S] * dist.get_world_size()
    blocks[-1] += course.HEAD_S
    costs = ap.costs.table(F=blocks, I=blocks, W=blocks, send=course.MESSAGE_S)
    return ap.simulate(schedule_of(name), costs).makespan


def main(name: str) -> None:
    """Train a step, compare it with step 7, and simulate it."""
    dist.init_process_group("gloo")
    course.compare(train(name), step7_asynchronous.train(course.Profile()))
    _, profiles = course.measured(step7_asynchronous.train)
    if dist.get_rank() == 0:
        print(f"{name}: gradients equal to those of step 7")
        measured, expected = 1e3 * course.length(profiles), 1e3 * simulated_s("1f1b")
        print(f"1f1b: step 7 takes {measured:.0f} ms, simulated {expected:.0f} ms")
        print(f"{name} simulated: {1e3 * simulated_s(name):.0f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "1f1b")
