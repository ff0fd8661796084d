"""``ModelLayers``: the modules of a model in order, with the examples that they are traced with."""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from annopipe.errors import CostError

__all__ = ["ModelLayers", "described", "holds_experts", "identity"]

_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}  # PyTorch's own


def holds_experts(name: str) -> bool:
    """Whether a parameter belongs to routed experts, of which each expert-parallel rank has its share, by its name.

    >>> holds_experts("blocks.3.feed.experts.gate_up"), holds_experts("blocks.3.feed.shared_experts.up")
    (True, False)
    """
    return "experts" in name.split(".")


@dataclasses.dataclass(frozen=True)
class ModelLayers:
    """A model as a list of modules, each of which takes what the one before it returns.

    Attributes:
        layers: in the order of the model; after the towers, where there are some. A layer that comes several times is
            traced once, as are layers that differ in nothing but the values of their tensors.
        inputs: example arguments of the first layer; () where there are towers.
        loss_fn, target: of the last layer; None where it returns the loss itself, or there is none.
        towers: chains of modules; the first of ``layers`` takes what their last modules return, one after the other.
        tower_inputs: for each tower, the example arguments of its first module.
        sequences: how many sequences, images or pairs the examples have.
        batch_wide: whether the loss needs the outputs of all microbatches at once; None: where there are towers.
        is_expert: whether a parameter of that name belongs to routed experts.
        name: what tables call it.

    Raises CostError for towers without examples, and the like.
    """

    layers: Sequence[nn.Module]
    inputs: tuple[Any, ...] = ()
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None
    target: Any = None
    towers: Sequence[Sequence[nn.Module]] = ()
    tower_inputs: Sequence[tuple[Any, ...]] = ()
    sequences: int = 1
    batch_wide: bool | None = None
    is_expert: Callable[[str], bool] = holds_experts
    name: str = "model"

    def __post_init__(self) -> None:
        where = f"model {self.name!r}"
        every = [*self.layers, *(module for tower in self.towers for module in tower)]
        if wrong := [module for module in every if not isinstance(module, nn.Module)]:
            raise CostError(f"{where}: {wrong[0]!r} is no layer: give torch.nn.Modules")
        if not self.layers or not all(self.towers):
            raise CostError(f"{where}: give every chain one layer or more")
        if len(self.tower_inputs) != len(self.towers):
            raise CostError(
                f"{where} has {len(self.towers)} towers and examples for {len(self.tower_inputs)}: give tower_inputs, "
                "a tuple of arguments for each"
            )
        if bool(self.inputs) == bool(self.towers):
            said = "both inputs and towers" if self.towers else "no inputs"
            raise CostError(f"{where} has {said}: give example arguments of the first layer, or of each tower")
        if type(self.sequences) is not int or self.sequences < 1:
            raise CostError(f"{where}: sequences={self.sequences!r}: give a whole number, 1 or more")


def identity(module: nn.Module) -> Hashable:
    """What two modules have in common that differ in nothing but the values of their tensors.

    Attributes that are not plain values are compared as objects: a layer that keeps its own number differs from the
    others, and is traced on its own. So do private ones, which a forward may read as well.

    >>> identity(nn.Linear(2, 2)) == identity(nn.Linear(2, 2)), identity(nn.Linear(2, 2)) == identity(nn.Linear(2, 3))
    (True, False)
    """
    return tuple(_parts(module))


def described(value: object) -> Hashable:
    """What two values have in common that make no difference to a trace; an object that has no hash is only itself.

    >>> described(torch.ones(2)) == described(torch.zeros(2)), described(1) == described(True), described([]) == []
    (True, False, False)
    """
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    try:
        hash(value)
    except TypeError:  # a tuple or a frozen dataclass with a list in it counts as Hashable, and is not
        return type(value), id(value)
    return type(value), value


def _parts(module: nn.Module) -> Iterator[Hashable]:
    yield f"{type(module).__module__}.{type(module).__qualname__}", id(type(module))
    for name, value in sorted(vars(module).items()):
        if name == "_modules":
            yield from ((key, None if child is None else identity(child)) for key, child in value.items())
        elif name in ("_parameters", "_buffers"):
            yield from ((key, None if tensor is None else described(tensor)) for key, tensor in value.items())
        elif name in _OF_MODULES and name.endswith("_hooks"):
            yield name, id(value) if value else 0
        elif name not in _OF_MODULES:
            yield name, described(value)
