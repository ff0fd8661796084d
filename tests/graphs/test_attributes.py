"""Snapshots of what a module holds: every change is found, named and put back."""

import collections
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from annopipe.graphs.attributes import SideEffects
from annopipe.graphs.snapshots import object_state, snapshot


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("v",)

    def __init__(self, v: int) -> None:
        self.v = v


class State:
    """A plain object."""

    def __init__(self) -> None:
        self.count = 0
        self.inner = Slotted(1)


class Activation:
    """A callable with state."""

    calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x


class Module(nn.Module):
    """Something of everything."""

    limit = 3
    shared: list[int] = []  # noqa: RUF012 - the point is that it is shared

    def __init__(self) -> None:
        super().__init__()
        self.number, self.text, self.flags = 1, "a", {1, 2}
        self.list: list[Any] = [1, [2]]
        self.queue = collections.deque([1], maxlen=2)
        self.table: dict[Any, Any] = {"k": 1, 3: {"deep": 1}}
        self.counter = collections.Counter("aab")
        self.state, self.pair = State(), (State(), 1)
        self.activation = Activation()
        self.array = np.zeros(2)
        self.python, self.numpy = random.Random(3), np.random.default_rng(3)
        self.tensor = torch.zeros(2)
        self.hidden = [nn.Linear(2, 2)]
        self.child = nn.Linear(2, 2)
        self.flat: Any = None
        self.register_buffer("buffer", torch.zeros(2))


CHANGES: dict[str, tuple[Any, list[str]]] = {
    "nothing": (lambda m: None, []),
    "a number": (lambda m: setattr(m, "number", 2), ["number"]),
    "the same number": (lambda m: setattr(m, "number", 1), []),
    "an equal tuple": (lambda m: setattr(m, "pair", (m.pair[0], 1)), []),
    "another type": (lambda m: setattr(m, "number", True), ["number"]),
    "a new attribute": (lambda m: setattr(m, "late", 1), ["late"]),
    "an attribute that is gone": (lambda m: delattr(m, "text"), ["text"]),
    "a list": (lambda m: m.list.append(3), ["list"]),
    "a list in a list": (lambda m: m.list[1].append(3), ["list"]),
    "a deque": (lambda m: m.queue.append(3), ["queue"]),
    "a set": (lambda m: m.flags.add(3), ["flags"]),
    "a dictionary": (lambda m: m.table.update(k=2), ["table.k"]),
    "a deep dictionary": (lambda m: m.table[3].clear(), ["table.[3].deep"]),
    "a counter": (lambda m: m.counter.update("b"), ["counter.b"]),
    "an object": (lambda m: setattr(m.state, "count", 1), ["state.count"]),
    "an object with slots": (lambda m: setattr(m.state.inner, "v", 2), ["state.inner"]),
    "an object in a tuple": (lambda m: setattr(m.pair[0], "count", 1), ["pair.count"]),
    "a callable": (lambda m: m.activation(1), ["activation.calls"]),
    "an array": (lambda m: m.array.__setitem__(0, 1), ["array"]),
    "a generator of Python": (lambda m: m.python.random(), ["python"]),
    "a generator of numpy": (lambda m: m.numpy.random(), ["numpy"]),
    "another tensor": (lambda m: setattr(m, "tensor", torch.zeros(2)), ["tensor"]),
    "a module in a list": (lambda m: setattr(m.hidden[0], "late", 1), ["hidden.late"]),
    "a submodule": (lambda m: setattr(m.child, "late", 1), ["child.late"]),
    "another submodule": (lambda m: setattr(m, "child", nn.Identity()), ["child"]),
    "another buffer": (lambda m: setattr(m, "buffer", torch.ones(2)), ["buffer"]),
    "another parameter": (lambda m: setattr(m.child, "weight", nn.Parameter(torch.ones(2, 2))), ["child.weight"]),
    "a parameter that is gone": (lambda m: setattr(m.child, "bias", None), ["child.bias"]),
    "the class": (lambda m: setattr(type(m), "limit", 4), ["Module.limit"]),
    "a list of the class": (lambda m: m.shared.append(1), ["Module.shared"]),
    "a mode": (lambda m: m.eval(), []),
    "its own parameters, listed": (lambda m: setattr(m, "flat", [m.child.weight, None, m.child.bias]), []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_put_back(name: str) -> None:
    module = Module()
    change, expected = CHANGES[name]
    before = SideEffects(module)
    held = describe(module)
    change(module)
    assert before.restore() == expected
    assert describe(module) == held
    assert before.restore() == []


def describe(module: Module) -> Any:
    """Everything that the changes above change, by value, tensors and modules by identity."""
    plain = {k: v for k, v in vars(module).items() if not k.startswith("_") and k not in ("hidden", "training", "flat")}
    tensors = {k: id(v) for k, v in plain.items() if isinstance(v, torch.Tensor)}
    rest = {k: v for k, v in sorted(plain.items()) if not isinstance(v, torch.Tensor)}
    generators = {"python": module.python.getstate(), "numpy": module.numpy.bit_generator.state}
    rest |= generators
    parameters = [(n, id(p)) for n, p in (*module.named_parameters(), *module.named_buffers())]
    children = [(n, id(c), sorted(vars(c))) for n, c in module.named_modules()]
    hidden = sorted(vars(module.hidden[0]))
    return snapshot([rest, tensors, parameters, children, hidden, type(module).limit, list(type(module).shared)])


def test_several_changes_are_all_named_in_order() -> None:
    module = Module()
    before = SideEffects(module)
    module.number, module.list[0], module.text = 2, 5, "b"
    assert before.restore() == ["list", "number", "text"]


def test_attributes_of_an_object_are_those_in_its_dictionary_and_in_slots() -> None:
    assert object_state(Slotted(3)) == {"v": 3}
    assert set(object_state(State())) == {"count", "inner"}
    assert object_state(3) == {}


def test_a_ring_of_objects_ends() -> None:
    module = Module()
    module.state.inner = module.state  # type: ignore[assignment]
    module.list.append(module.list)
    before = SideEffects(module)
    module.state.count = 5
    assert before.restore() == ["state.count"]


def test_a_long_chain_of_objects_is_walked() -> None:
    module = Module()
    end = module.state
    for _ in range(3000):
        end.inner = State()  # type: ignore[assignment]
        end = end.inner  # type: ignore[assignment]
    before = SideEffects(module)
    end.count = 1
    (path,) = before.restore()
    assert path.endswith("inner.count")
