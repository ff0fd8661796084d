"""Random stage graphs with views, mutations, random numbers, collectives and operations that nobody understands.

A graph is executed while it is built, so that every node has a value: its shape says which operations fit, and its
address says which values share memory. All choices come from one ``random.Random``; that of hypothesis shrinks.
"""

import dataclasses
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph

__all__ = ["SIDE_EFFECTS", "Program", "addresses", "foreign", "random_program", "run_node"]

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

# A foreign library: `record` has a side effect that no schema tells, `shake` draws random numbers and writes.
SIDE_EFFECTS: list[bytes] = []
_LIBRARY = torch.library.Library("tests_random_graphs", "DEF")
_LIBRARY.define("record(Tensor x) -> Tensor")
_LIBRARY.define("shake(Tensor(a!) x) -> ()")


@torch.library.impl(_LIBRARY, "record", "CompositeExplicitAutograd")
def _record(x: Tensor) -> Tensor:
    SIDE_EFFECTS.append(x.detach().contiguous().numpy().tobytes())
    return x + len(SIDE_EFFECTS)


@torch.library.impl(_LIBRARY, "shake", "CompositeExplicitAutograd")
def _shake(x: Tensor) -> None:
    x.add_(torch.rand(x.shape))


foreign = torch.ops.tests_random_graphs


@dataclasses.dataclass
class Program:
    """A stage graph with values to run it on.

    inputs: by port name, as they were before the graph ran; they may share memory with each other.
    values: what every node yielded in the run that built the graph; none has been freed, so addresses are distinct.
    racy: whether something touches what a pending collective reads or fills, so that program order has no one result.
    """

    stage: StageGraph
    inputs: dict[str, Tensor]
    values: dict[fx.Node, Any]
    racy: bool


def addresses(value: Any) -> frozenset[int]:
    """The storages that a value, possibly a tuple of tensors, lies in."""
    return frozenset(v.untyped_storage().data_ptr() for v in pytree.tree_leaves(value) if isinstance(v, Tensor))


def run_node(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Execute one function or method call on the values of its arguments."""
    args = fx.node.map_arg(node.args, values.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def random_program(rng: random.Random) -> Program:
    """One to three inputs, perhaps a constant, 4 to 14 operations, the waits of what is still pending, some outputs."""
    return _Builder(rng).program()


class _Builder:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Any] = {}
        self.pool: list[fx.Node] = []  # tensors to compute with
        self.masks: list[fx.Node] = []  # what dropout kept
        self.pending: list[fx.Node] = []  # what to wait for: a launch, or an item of one
        self.launched: dict[fx.Node, fx.Node] = {}  # what to wait for, or to have waited for -> its launch
        self.careless = rng.randrange(12) == 11
        self.racy = False
        self.aliased = False  # whether inputs share memory
        self.constants: dict[str, Tensor] = {}
        self.outside: frozenset[int] = frozenset()  # storages of inputs and constants

    def program(self) -> Program:
        inputs = self._inputs()
        flavour = self.rng.choice([_PURE, _PLAIN, _RANDOM, _COMM, _COMM, _ALL])
        steps: list[Callable[[_Builder], None]] = [step for step, weight in flavour.items() for _ in range(weight)]
        for _ in range(self.rng.randint(4, 14)):
            self.rng.choice(steps)(self)
        while self.pending:
            self.wait()
        outputs = [self.any() for _ in range(self.rng.randint(1, 4))]
        outputs += [node for node in self.pool[-2:] if node not in outputs]
        self.graph.output(tuple(outputs))
        stage = StageGraph(
            self.graph,
            [Port.of("input", name.removeprefix("input."), value) for name, value in inputs.items()],
            [Port.of("output", str(index), self.values[node]) for index, node in enumerate(outputs)],
            attributes=self.constants,
        )
        return Program(stage, inputs, self.values, self.racy)

    def _inputs(self) -> dict[str, Tensor]:
        """Placeholders and a constant; the graph under construction works on copies of the values that are returned."""
        count = self.rng.randint(1, 3)
        base = torch.linspace(-1, 2, 24)
        shapes = [self.rng.choice([(4,), (2, 4), (4, 2)]) for _ in range(count)]
        inputs = {}
        self.aliased = self.rng.randrange(6) == 5
        for index, shape in enumerate(shapes):
            size = torch.Size(shape).numel()
            start = 2 * index if self.aliased else 8 * index
            own = base[start : start + size].view(shape)
            inputs[f"input.x{index}"] = own if self.aliased else own.clone()
        working = share_alike(inputs)
        for name in inputs:
            node = self.graph.placeholder(name.replace(".", "_"))
            self.values[node] = working[name]
            self.pool.append(node)
        self.outside = addresses(list(self.values.values()))
        if self.rng.randrange(4) == 3:
            self.constants["constant"] = torch.full((4,), 0.5)
            node = self.graph.get_attr("constant")
            self.values[node] = self.constants["constant"].clone()
            self.pool.append(node)
            self.outside |= addresses(self.values[node])
        return inputs

    # What the steps use

    def any(self, fits: Callable[[Tensor], bool] = lambda _: True, *, write: bool = False) -> fx.Node:
        """A tensor that fits and may be touched now (and written): one of the pool, or else a new one."""
        launches = {self.launched[pending] for pending in self.pending}
        filling = addresses([self.values[pending] for pending in self.pending])
        read = addresses([self.values[n] for launch in launches for n in launch.all_input_nodes if write])
        barred = filling | read
        careless = self.careless and self.rng.randrange(2) == 1
        if write and self.rng.randrange(8) != 7:
            barred |= self.outside  # a write to an input orders everything; most graphs should be freer than that
        found = [n for n in self.pool if fits(self.values[n]) and (careless or not addresses(self.values[n]) & barred)]
        if not found:
            return self.call(aten.full.default, [2, 4], 0.25)
        node = found[-1 - min(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]
        self.racy |= bool(addresses(self.values[node]) & (filling | read))
        return node

    def call(self, target: Any, *args: Any, keep: bool = True, **kwargs: Any) -> fx.Node:
        return self.note(self.graph.call_function(target, args, kwargs), keep=keep)

    def note(self, node: fx.Node, *, keep: bool = True) -> fx.Node:
        self.values[node] = run_node(node, self.values)
        if keep:
            self.pool.append(node)
        return node

    def alike(self, node: fx.Node) -> fx.Node:
        shape = self.values[node].shape
        return self.any(lambda t: t.shape == shape)

    # Pure computations and views

    def compute(self) -> None:
        x = self.any()
        match self.rng.randrange(5):
            case 0:
                self.call(aten.sin.default, x)
            case 1:
                self.call(aten.mul.Tensor, x, self._matching(x))
            case 2:
                self.call(aten.cat.default, [x, self._matching(x)]) if self.values[x].numel() < 9 else None
            case 3 if self.masks:
                self.call(aten.mul.Tensor, self.rng.choice(self.masks), 2.0)
            case 3:
                self.call(aten.clone.default, x)
            case _:
                self.call(aten.add.Tensor, x, self._matching(x))

    def _matching(self, x: fx.Node) -> fx.Node:
        y = self.alike(x)
        return y if self.values[y].shape == self.values[x].shape else x

    def view(self) -> None:
        x = self.any()
        t = self.values[x]
        match self.rng.randrange(6):
            case 0:
                self.call(aten.reshape.default, x, [-1])  # a view or a copy, by the strides
            case 1 if t.is_contiguous():
                self.call(aten.view.default, x, [-1])
            case 2 if t.dim() == 2:
                self.call(aten.transpose.int, x, 0, 1)
            case 3 if t.dim() == 2:
                self.call(aten.select.int, x, 0, self.rng.randrange(t.shape[0]))
            case 4 if t.shape[0] >= 2:
                parts = self.call(aten.split.Tensor, x, (t.shape[0] + 1) // 2, keep=False)
                for index in range(self.rng.randint(1, len(self.values[parts]))):
                    self.call(operator.getitem, parts, index)
            case _:
                self.call(aten.slice.Tensor, x, 0, 0, self.rng.randint(1, t.shape[0]))

    # Writes

    def write(self) -> None:
        x = self.any(write=True)
        match self.rng.randrange(5):
            case 0:
                self.call(aten.sin_.default, x)
            case 1:
                self.call(aten.copy_.default, x, self._apart(x))
            case 2:
                y = self.any(write=True)
                if addresses(self.values[x]) != addresses(self.values[y]):
                    self.call(aten._foreach_mul_.Scalar, [x, y], 0.5, keep=False)
            case 3:
                self.call(aten.mul.out, self._apart(x), self._apart(x), out=x)
            case _:
                self.call(aten.add_.Tensor, x, self._apart(x))

    def _apart(self, x: fx.Node) -> fx.Node:
        y = self._matching(x)
        return x if addresses(self.values[x]) == addresses(self.values[y]) else y

    # Random numbers

    def draw(self) -> None:
        match self.rng.randrange(3):
            case 0:
                self.call(aten.rand_like.default, self.any())
            case 1:
                pair = self.call(aten.native_dropout.default, self.any(), 0.5, True, keep=False)
                self.call(operator.getitem, pair, 0)
                if self.rng.randrange(2):
                    self.masks.append(self.call(operator.getitem, pair, 1, keep=False))
            case _:
                self.call(aten.bernoulli_.float, self.any(write=True), 0.5)

    # Collectives

    def launch(self) -> None:
        group = "0" if dist.group.WORLD is None else dist.group.WORLD.group_name
        x = self.any(Tensor.is_contiguous)
        match self.rng.randrange(5):
            case 0:
                rows = self.values[x].shape[0]
                self._start(self.call(c10d.all_to_all_single.default, x, [rows], [rows], group))
            case 1:
                both = self.call(c10d.all_reduce_coalesced.default, [x, self._matching(x)], "sum", group, keep=False)
                for index in range(2):
                    self._start(self.call(operator.getitem, both, index), both)
            case 2:
                x = self.any(Tensor.is_contiguous, write=True)
                self._start(self.call(c10d.all_reduce_.default, x, "sum", group))
            case _:
                self._start(self.call(c10d.all_reduce.default, x, "sum", group))

    def _start(self, pending: fx.Node, launch: fx.Node | None = None) -> None:
        self.pending.append(pending)
        self.launched[pending] = launch or pending

    def wait(self) -> None:
        """Wait for a launch; afterwards both the wait's result and what was launched are there to be used."""
        if self.pending:
            pending = self.pending.pop(self.rng.randrange(len(self.pending)))
            self.call(c10d.wait_tensor.default, pending)
        else:
            x = self.any()
            if x not in self.launched:  # waits for nothing, returns its argument; no launch is waited for twice
                self.call(c10d.wait_tensor.default, x)

    # What nobody understands

    def unknown(self) -> None:
        match self.rng.randrange(4):
            case 0:
                self.call(foreign.shake.default, self.any(write=True), keep=False)
            case 1:
                self.note(self.graph.call_method("view", (self.any(Tensor.is_contiguous), -1)))
            case 2:
                self.note(self.graph.call_method("mul_", (self.any(write=True), 2)))
            case _:
                self.call(foreign.record.default, self.any())


def share_alike(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share memory with each other as the originals do."""
    storages: dict[int, Tensor] = {}
    copies = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            whole = torch.empty(0).set_(storage)
            storages[storage.data_ptr()] = whole.clone()
        whole = storages[storage.data_ptr()]
        copies[name] = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return copies


_Flavour = dict[Callable[[_Builder], None], int]
_PURE: _Flavour = {_Builder.compute: 4, _Builder.view: 2}
_PLAIN: _Flavour = {_Builder.compute: 4, _Builder.view: 3, _Builder.write: 4}
_RANDOM: _Flavour = {_Builder.compute: 3, _Builder.view: 2, _Builder.write: 2, _Builder.draw: 3}
_COMM: _Flavour = {_Builder.compute: 3, _Builder.view: 2, _Builder.write: 2, _Builder.launch: 3, _Builder.wait: 3}
_ALL: _Flavour = {**_RANDOM, _Builder.launch: 2, _Builder.wait: 2, _Builder.unknown: 1}
