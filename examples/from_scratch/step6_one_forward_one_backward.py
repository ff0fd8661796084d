"""Step 6: 1F1B (PipeDream-Flush, arXiv 2006.09503): a backward as soon as it can be.

    torchrun --nproc-per-node 4 -m examples.from_scratch.step6_one_forward_one_backward

A rank runs as many forwards as it has ranks behind it, then a forward and a backward in turns, then the backwards that
are left. The bubble is that of GPipe, but rank r keeps the activations of n - r microbatches at most, however many a
step has.

One thing has to change. In the steady state a rank wants to send an output forward while its neighbour wants to send a
gradient back. If both wait until their message is received, both wait for ever. So where a rank sends to a neighbour
and receives from the same one, both messages are started before either is waited for.
"""

import torch.distributed as dist
from torch import Tensor

from examples.from_scratch import course
from examples.from_scratch.step2_partition import Stage
from examples.from_scratch.step3_send_receive import arrived, empty_message, receive, send, stamped


def exchange(values: Tensor, neighbour: int) -> Tensor:
    """Send to a neighbour and receive from it at the same time."""
    sent, found = stamped(values), empty_message()
    both = [dist.P2POp(dist.isend, sent, neighbour), dist.P2POp(dist.irecv, found, neighbour)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    arrived(sent)
    return arrived(found)


def train(profile: course.Profile) -> course.Result:
    """One step."""
    number, ranks = dist.get_rank(), dist.get_world_size()
    stage, count = Stage(number, ranks), course.MICROBATCHES
    before, behind = number - 1, number + 1
    warm_up = ranks - 1 - number

    def given(microbatch: int) -> Tensor:
        return course.microbatches()[microbatch][0] if stage.first else receive(before)

    for microbatch in range(warm_up):
        send(stage.forward(profile, microbatch, given(microbatch)), behind)
    entry = given(warm_up)
    for microbatch in range(count - warm_up):  # steady state: forward of one, backward of an earlier one
        output = stage.forward(profile, warm_up + microbatch, entry)
        above = None if stage.last else exchange(output, behind)
        gradient = stage.backward(profile, microbatch, above)
        following = warm_up + microbatch + 1
        if following == count:
            if gradient is not None:
                send(gradient, before)
        elif gradient is None:
            entry = given(following)
        else:
            entry = exchange(gradient, before)
    for microbatch in range(count - warm_up, count):
        gradient = stage.backward(profile, microbatch, receive(behind))
        if gradient is not None:
            send(gradient, before)
    return stage.result()


if __name__ == "__main__":
    from examples.from_scratch import step5_gpipe

    course.main("1F1B", train, before=step5_gpipe.train)
