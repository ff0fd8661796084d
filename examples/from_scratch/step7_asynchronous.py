"""Step 7: 1F1B with asynchronous messages: nobody waits for what it does not need yet.

    torchrun --nproc-per-node 4 -m examples.from_scratch.step7_asynchronous
    MESSAGE_MS=20 torchrun --nproc-per-node 4 -m examples.from_scratch.step7_asynchronous

In step 6 a rank waited while its message was under way. Here a send is started, and waited for at the end of the
step; a receive is started before the action in front of it, and waited for when its values are needed. The messages of
a step are known beforehand, in their order, so nothing can cross: that is what the actions of a schedule are for.
"""

from collections import deque

import torch.distributed as dist
from torch import Tensor

from examples.from_scratch import course
from examples.from_scratch.step2_partition import Stage
from examples.from_scratch.step3_send_receive import arrived, empty_message, stamped


class Mail:
    """Messages under way, to and from one neighbour."""

    def __init__(self, neighbour: int, expected: int) -> None:
        self._neighbour, self._sent = neighbour, deque[tuple[dist.Work, Tensor]]()
        self._expected, self._coming = expected, deque[tuple[dist.Work, Tensor]]()

    def send(self, values: Tensor) -> None:
        """Start to send; the values are kept until the message has gone."""
        message = stamped(values)
        (work,) = dist.batch_isend_irecv([dist.P2POp(dist.isend, message, self._neighbour)])
        self._sent.append((work, message))

    def prefetch(self) -> None:
        """Start to receive the next message, if one is to come and none is awaited."""
        if self._expected and not self._coming:
            message = empty_message()
            (work,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, message, self._neighbour)])
            self._coming.append((work, message))
            self._expected -= 1

    def receive(self) -> Tensor:
        """The next message, when it has arrived."""
        self.prefetch()
        work, message = self._coming.popleft()
        work.wait()
        self.prefetch()
        return arrived(message)

    def close(self) -> None:
        """Wait for what was sent."""
        while self._sent:
            self._sent.popleft()[0].wait()


def order(number: int, ranks: int, count: int) -> list[tuple[str, int]]:
    """The actions of a rank under 1F1B: the same as in step 6, as data.

    >>> order(2, 4, 4)
    [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('F', 3), ('B', 2), ('B', 3)]
    """
    warm_up = ranks - 1 - number
    actions = [("F", microbatch) for microbatch in range(warm_up)]
    for microbatch in range(count - warm_up):
        actions += [("F", warm_up + microbatch), ("B", microbatch)]
    return actions + [("B", microbatch) for microbatch in range(count - warm_up, count)]


def train(profile: course.Profile) -> course.Result:
    """One step: the loop runs any order of actions, not only that of 1F1B."""
    number, ranks = dist.get_rank(), dist.get_world_size()
    stage, count = Stage(number, ranks), course.MICROBATCHES
    before, behind = Mail(number - 1, count * (not stage.first)), Mail(number + 1, count * (not stage.last))
    for kind, microbatch in order(number, ranks, count):
        before.prefetch()
        behind.prefetch()
        if kind == "F":
            given = course.microbatches()[microbatch][0] if stage.first else before.receive()
            output = stage.forward(profile, microbatch, given)
            if not stage.last:
                behind.send(output)
        else:
            gradient = stage.backward(profile, microbatch, None if stage.last else behind.receive())
            if gradient is not None:
                before.send(gradient)
    before.close()
    behind.close()
    return stage.result()


if __name__ == "__main__":
    from examples.from_scratch import step6_one_forward_one_backward

    course.main("1F1B, asynchronous", train, before=step6_one_forward_one_backward.train)
