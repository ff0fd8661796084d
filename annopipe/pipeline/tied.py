"""Tied parameters that several ranks hold, such as an embedding that is the head too: one gradient, one value.

Each rank has a copy. After a step all of them get the sum of the step's gradients, added up in the same order, so an
optimizer keeps the copies identical. On one rank a tied parameter is one tensor, and nothing has to be done.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from annopipe.errors import PipelineError
from annopipe.graphs.distributed_tensors import Layout, is_distributed_tensor, local_part
from annopipe.pipeline.ranks.messages import Messages, Received
from annopipe.pipeline.ranks.peers import AgreedError, Peers
from annopipe.pipeline.stages.gradients_apart import gradients_apart
from annopipe.scheduling.placement import Placement

__all__ = ["TiedParameters"]


_PORTION_BYTES = 64 * 2**20


class TiedParameters:
    """This rank's part of the tied parameters of a pipeline.

    Attributes:
        counted_elsewhere: copies of parameters that a rank before this one counts.

    Raises PipelineError for a name that is no parameter, and for two tensors on one rank.
    """

    def __init__(
        self,
        tied: Mapping[str, str],
        modules: Mapping[int, nn.Module],
        placement: Placement,
        rank: int,
    ) -> None:
        self._rank = rank
        self._holders: dict[str, list[int]] = {}
        self._own: dict[str, nn.Parameter] = {}
        self._checked = False
        for root, places in _sets(tied).items():
            holders = sorted({placement.rank_of[_stage_of(place, placement.stages)] for place in places})
            here = [place for place in places if placement.rank_of[int(place.partition(".")[0])] == rank]
            if here and (parameter := _the_one(here, modules)) is not None and len(holders) > 1:
                self._holders[root], self._own[root] = holders, parameter
        self._any = bool(tied) or placement.copies > 1
        self._buffers = _copied_buffers(modules, placement)
        self.counted_elsewhere = {own for root, own in self._own.items() if self._holders[root][0] < rank}

    def check(self, peers: Peers) -> None:
        """Compare the copies: their kinds each time, their values once.

        Raises PipelineError, on every rank, when they differ.
        """
        if not self._any:
            return
        copied: dict[str, torch.Tensor] = {**self._own, **self._buffers}
        own = {root: (_kind(value), "" if self._checked else _digest(value)) for root, value in copied.items()}
        everyone = peers.gather(own, "the copies of tied parameters")
        first: dict[str, tuple[int, tuple[str, str]]] = {}
        for rank, described in enumerate(everyone):
            for root, found in described.items():
                other, expected = first.setdefault(root, (rank, found))
                if found != expected:
                    what = "values" if found[0] == expected[0] else f"kinds, {expected[0]} and {found[0]}"
                    raise AgreedError(
                        f"the copies of {root} on ranks {other} and {rank} have different {what}: load or initialise "
                        "them alike"
                    )
        self._checked = True

    @contextlib.contextmanager
    def summed(self, messages: Messages) -> Iterator[None]:
        """Add to every copy's gradient the sum of what all copies get inside."""
        trained = {root: parameter for root, parameter in self._own.items() if parameter.requires_grad}
        with gradients_apart(trained.values()):
            yield
            for root, total in self._sums(trained, messages).items():
                trained[root].grad = total

    def _sums(self, trained: Mapping[str, nn.Parameter], messages: Messages) -> dict[str, torch.Tensor | None]:
        """By root: what all copies got; None where no copy got anything."""
        found: dict[str, torch.Tensor | None] = {}
        for roots in _portions(trained):
            asked = {root: self._ask(root, trained[root], messages) for root in roots}
            for root, received in asked.items():
                arrived = {rank: messages.wait(each) for rank, each in received.items()}
                found[root] = self._sum(trained[root], arrived)
            messages.flush()
        return found

    def _ask(self, root: str, parameter: nn.Parameter, messages: Messages) -> dict[int, Received]:
        """Exchange gradients with the other ranks that have a copy; of two ranks the lower one sends first."""
        own, text = _gradient(parameter), f"the gradient of tied parameter {root}"
        has = own.new_full((1,), parameter.grad is not None)
        asked = {}
        for rank in self._holders[root]:
            if self._rank < rank:
                messages.send(text, rank, [has, own])
            if self._rank != rank:
                buffers = [has.clone(), torch.empty_like(own, memory_format=torch.contiguous_format)]
                asked[rank] = messages.receive(text, rank, buffers)
            if self._rank > rank:
                messages.send(text, rank, [has, own])
        return asked

    def _sum(self, parameter: nn.Parameter, arrived: Mapping[int, Sequence[torch.Tensor]]) -> torch.Tensor | None:
        """In the order of ranks, so that it is the same everywhere to the last bit."""
        if parameter.grad is None and not any(bool(has) for has, _ in arrived.values()):
            return None
        gradients = {self._rank: _gradient(parameter), **{rank: gradient for rank, (_, gradient) in arrived.items()}}
        first, *rest = (gradients[rank] for rank in sorted(gradients))
        total = first.clone()
        for gradient in rest:
            total += gradient
        return Layout.of(parameter).wrap(total) if is_distributed_tensor(parameter) else total


def _copied_buffers(modules: Mapping[int, nn.Module], placement: Placement) -> dict[str, torch.Tensor]:
    """The buffers in the state of this rank's modules that another copy of the model has, too."""
    if placement.copies == 1:
        return {}
    return {
        f"{placement.weights_of[index]}.{name}": buffer
        for index, module in modules.items()
        for name, buffer in module.named_buffers()
        if name in module.state_dict()
    }


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """What this rank has of it; of a DTensor its part."""
    return local_part(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))


def _portions(trained: Mapping[str, nn.Parameter]) -> Iterator[list[str]]:
    """The roots in their order, as many at a time as their gradients may take memory for."""
    portion: list[str] = []
    size = 0
    for root, parameter in trained.items():
        portion.append(root)
        size += parameter.numel() * parameter.element_size()
        if size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _sets(tied: Mapping[str, str]) -> dict[str, list[str]]:
    """All places of each tied parameter, the first one included, by the first one."""
    found: dict[str, list[str]] = {}
    for place in sorted(tied):
        seen, source = {place}, tied[place]
        while source in tied and source not in seen:
            seen.add(source)
            source = tied[source]
        found.setdefault(source, [source]).append(place)
    return found


def _stage_of(place: str, stages: int) -> int:
    stage, _, name = place.partition(".")
    if not stage.isdecimal() or int(stage) >= stages or not name:
        raise PipelineError(f'tied: {place!r} is no parameter of one of {stages} stages: write "stage.name"')
    return int(stage)


def _the_one(places: Sequence[str], modules: Mapping[int, nn.Module]) -> nn.Parameter | None:
    found: list[nn.Parameter] = []
    for place in places:
        stage, _, name = place.partition(".")
        parameters = dict(modules[int(stage)].named_parameters(remove_duplicate=False))
        if name not in parameters:
            raise PipelineError(f"tied: stage {stage} has no parameter {name!r}")
        found.append(parameters[name])
    if any(parameter is not found[0] for parameter in found):
        raise PipelineError(
            f"tied: {' and '.join(places)} are on one rank and are different tensors: let the modules share one"
        )
    return found[0] if found else None


def _kind(parameter: torch.Tensor) -> str:
    placed = f" {parameter.placements}" if is_distributed_tensor(parameter) else ""
    return f"{parameter.dtype} {tuple(parameter.shape)}{placed} requires_grad={parameter.requires_grad}"


def _digest(parameter: torch.Tensor) -> str:
    values = local_part(parameter).detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(values).hexdigest()
