"""What stages hand to each other: kept where both are on this rank, and sent as messages where they are not.

A forward's outputs go to every later stage that takes them, and the gradients that these give back are added up, in the
order of the stages. What is on its way waits in an inbox, by message: as tensors, or as a message that has been asked
for; and in the outbox until it is sent.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping

import torch

from annopipe.pipeline.ranks.acknowledgements import Message, messages_of
from annopipe.pipeline.ranks.messages import Messages, Received
from annopipe.pipeline.stages.boundary import Link
from annopipe.scheduling.actions import Action
from annopipe.scheduling.placement import Placement

__all__ = ["Routing"]

Values = Mapping[str, torch.Tensor]


class Routing:
    """The ways between the stages of one rank and all others.

    Args:
        placement: what flows between stages, and where they are.
        links: what crosses each edge, by its stages.
        messages: between ranks.
        taken: by received message, how many of this rank's have been taken when it is there.
    """

    def __init__(
        self,
        placement: Placement,
        links: Mapping[tuple[int, int], Link],
        messages: Messages,
        taken: Mapping[Message, int],
    ) -> None:
        self._placement, self._links, self._messages, self._taken = placement, links, messages, taken
        self._edges = {edge: number for number, edge in enumerate(placement.edges)}
        self._inbox: dict[Message, list[torch.Tensor] | Received] = {}
        self._outbox: dict[Message, list[torch.Tensor]] = {}

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """At the end everything has left; nothing of a step stays here, even if it failed."""
        self._messages.begin()
        try:
            yield
            self._messages.flush()
        finally:
            self._inbox.clear()
            self._outbox.clear()

    def hand_outputs(self, stage: int, microbatch: int, values: Values) -> None:
        """Give the results of a forward to the stages that take them."""
        for target in self._placement.successors[stage]:
            leaves = self._links[stage, target].boundary.tensors
            self._hand_on(Message("F", stage, target, microbatch), [values[leaf.port] for leaf in leaves])

    def hand_gradients(self, stage: int, microbatch: int, gradients: list[torch.Tensor | None]) -> None:
        """Give the gradients of all tensors that a stage was handed to the stages that want them."""
        given = iter(gradients)
        for source in self._placement.predecessors[stage]:
            link = self._links[source, stage]
            own = list(itertools.islice(given, len(link.boundary.tensors)))
            wanted = [gradient for at in link.returning if (gradient := own[at]) is not None]
            if wanted:
                self._hand_on(Message("B", stage, source, microbatch), wanted)

    def send(self, action: Action) -> None:
        """Start to send what waits for a SEND."""
        for message in messages_of(action, self._placement):
            tensors = self._outbox.pop(message, [])
            receiver = self._placement.rank_of[message.target]
            # Waited for later, outside of its action.
            text = f"{action} (stage {action.stage}, microbatch {action.microbatch})"
            self._messages.send(text, receiver, tensors, self._tag(message))

    def receive(self, action: Action) -> None:
        """Ask for what a RECV receives."""
        for message in messages_of(action, self._placement):
            is_forward = message.way == "F"
            link = self._links[_edge_of(message)]
            buffers = link.forward_buffers() if is_forward else link.backward_buffers()
            sender = self._placement.rank_of[message.source]
            self._inbox[message] = self._messages.receive(str(action), sender, buffers, self._tag(message))

    def take_inputs(self, stage: int, microbatch: int) -> list[torch.Tensor]:
        """What the stages before have handed to a forward."""
        found: list[torch.Tensor] = []
        for source in self._placement.predecessors[stage]:
            arrived = self._take(Message("F", source, stage, microbatch))
            found += self._links[source, stage].laid_out(arrived)
        return found

    def take_gradients(self, stage: int, microbatch: int) -> dict[str, torch.Tensor]:
        """The gradients of a stage's outputs, by port, added up over the stages that took them."""
        found: dict[str, torch.Tensor] = {}
        for target in self._placement.successors[stage]:
            link = self._links[stage, target]
            if link.returning:
                arrived = self._take(Message("B", target, stage, microbatch))
                for port, gradient in zip(link.returning_ports, arrived, strict=True):
                    earlier = found.get(port)
                    found[port] = gradient if earlier is None else earlier + gradient
        return found

    def _hand_on(self, message: Message, tensors: list[torch.Tensor]) -> None:
        rank_of = self._placement.rank_of
        here = rank_of[message.source] == rank_of[message.target]
        (self._inbox if here else self._outbox)[message] = tensors

    def _take(self, message: Message) -> list[torch.Tensor]:
        found = self._inbox.pop(message)
        if not isinstance(found, Received):
            return found
        tensors = self._messages.wait(found)
        if found.works:  # nothing was sent otherwise, and so nothing is known
            self._messages.taken(found.sender, self._taken.get(message, 0))
        return tensors

    def _tag(self, message: Message) -> int:
        """Tells a message from the others of a step where a connection that skips stages lets none keep its order."""
        edge = self._edges[_edge_of(message)]
        return 1 + (message.microbatch * len(self._edges) + edge) * 2 + (message.way == "B")


def _edge_of(message: Message) -> tuple[int, int]:
    """The edge that a message goes along, as the placement has it."""
    return (message.source, message.target) if message.way == "F" else (message.target, message.source)
