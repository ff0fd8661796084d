"""One small graph per rule. Each test says which of its nodes must come before which, and which may move.

``must(a, b)``: an order with b before a is refused. ``free(a, b)``: neither waits for the other, directly or not.
"""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from annopipe.graphs.dependencies import predecessors
from annopipe.graphs.multiplexing import multiplex
from annopipe.graphs.ops import traits
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph, body
from tests.graphs.random_graphs import foreign

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


class Nodes:
    """A graph under construction: every method adds a node."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.input = self.graph.placeholder("x")
        self.other_input = self.graph.placeholder("y")

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def new(self) -> fx.Node:
        """A tensor of the graph's own."""
        return self.call(aten.sin.default, self.input)

    def read(self, node: fx.Node) -> fx.Node:
        return self.call(aten.exp.default, node)

    def write(self, node: fx.Node) -> fx.Node:
        return self.call(aten.add_.Scalar, node, 1)

    def launch(self, node: fx.Node) -> fx.Node:
        return self.call(c10d.all_reduce.default, node, "sum", "0")

    def launch_in_place(self, node: fx.Node) -> fx.Node:
        return self.call(c10d.all_reduce_.default, node, "sum", "0")

    def wait(self, node: fx.Node) -> fx.Node:
        return self.call(c10d.wait_tensor.default, node)

    def must(self, first: fx.Node, then: fx.Node) -> bool:
        assert body(self.graph).index(first) < body(self.graph).index(then)
        return first in self._before(then)

    def free(self, a: fx.Node, b: fx.Node) -> bool:
        return a not in self._before(b) and b not in self._before(a)

    def _before(self, node: fx.Node) -> set[fx.Node]:
        nodes = body(self.graph)
        before = predecessors(nodes)
        found: set[fx.Node] = set()
        pending = [nodes.index(node)]
        while pending:
            pending += (earlier := before[pending.pop()])
            found |= {nodes[i] for i in earlier}
        return found


@pytest.fixture
def g() -> Nodes:
    return Nodes()


# Data


def test_a_node_comes_after_those_whose_values_it_uses(g: Nodes) -> None:
    a = g.new()
    b = g.call(aten.add.Tensor, a, a)
    c = g.call(aten.cat.default, [b, a])
    d = g.call(aten.clamp.Tensor, c, max=b)
    assert predecessors(body(g.graph)) == [[], [0], [0, 1], [1, 2]]
    assert g.must(a, d)


def test_pure_operations_are_free_to_move(g: Nodes) -> None:
    a, b = g.new(), g.new()
    c, d = g.read(a), g.call(aten.view.default, a, [-1])
    assert g.free(a, b)
    assert g.free(b, c)
    assert g.free(c, d)


def test_reads_of_an_input_are_free_to_move(g: Nodes) -> None:
    assert g.free(g.read(g.input), g.read(g.input))


# Mutation


def test_a_read_stays_before_the_write_that_follows(g: Nodes) -> None:
    a = g.new()
    before, write, after = g.read(a), g.write(a), g.read(a)
    assert g.must(before, write)
    assert g.must(write, after)
    assert g.free(before, g.new())


def test_writes_of_one_storage_keep_their_order(g: Nodes) -> None:
    a = g.new()
    first, second = g.write(a), g.write(a)
    assert g.must(first, second)


def test_writes_of_two_storages_are_free(g: Nodes) -> None:
    a, b = g.new(), g.new()
    assert g.free(g.write(a), g.write(b))


def test_a_view_is_read_before_its_base_is_written(g: Nodes) -> None:
    a = g.new()
    view = g.call(aten.transpose.int, a, 0, 1)
    read, write = g.read(view), g.write(a)
    assert g.must(read, write)
    assert g.must(view, write)


def test_a_view_is_read_after_its_base_was_written(g: Nodes) -> None:
    a = g.new()
    view = g.call(aten.select.int, a, 0, 0)
    write, read = g.write(a), g.read(view)
    assert g.must(write, read)


def test_a_write_to_a_view_is_a_write_to_its_base_and_to_its_siblings(g: Nodes) -> None:
    a = g.new()
    one, two = g.call(aten.view.default, a, [-1]), g.call(aten.slice.Tensor, a, 0, 0, 1)
    write = g.write(one)
    assert g.must(write, g.read(a))
    assert g.must(write, g.read(two))


@pytest.mark.parametrize("split", [aten.split.Tensor, aten.unsafe_split.Tensor, aten.chunk.default, aten.unbind.int])
def test_the_parts_of_a_split_share_its_storage(g: Nodes, split: Any) -> None:
    a = g.new()
    parts = g.call(split, a, 2)
    one, two = g.call(operator.getitem, parts, 0), g.call(operator.getitem, parts, 1)
    write = g.write(one)
    assert g.must(write, g.read(two))
    assert g.must(write, g.read(a))


def test_the_results_of_an_operation_that_makes_several_tensors_are_apart(g: Nodes) -> None:
    pair = g.call(aten.sort.default, g.new())
    values, indices = g.call(operator.getitem, pair, 0), g.call(operator.getitem, pair, 1)
    assert g.free(g.write(values), g.read(indices))


def test_the_result_of_an_in_place_operation_is_its_argument(g: Nodes) -> None:
    a = g.new()
    result = g.write(a)
    read = g.read(a)
    again = g.write(result)
    assert g.must(read, again)
    assert g.must(again, g.read(a))


def test_an_operation_writes_its_out_argument(g: Nodes) -> None:
    a, b, out = g.new(), g.new(), g.new()
    before = g.read(out)
    write = g.call(aten.add.out, a, b, out=out)
    after = g.read(out)
    assert g.must(before, write)
    assert g.must(write, after)
    assert g.free(write, g.read(a))
    assert g.must(after, g.write(write))


def test_a_foreach_operation_writes_all_of_its_list_and_reads_the_other(g: Nodes) -> None:
    a, b, c, d = g.new(), g.new(), g.new(), g.new()
    reads = [g.read(a), g.read(b)]
    write = g.call(aten._foreach_add_.List, [a, b], [c, d])
    assert all(g.must(read, write) for read in reads)
    assert g.must(write, g.read(b))
    assert g.must(write, g.write(d))
    assert g.free(write, g.read(c))


def test_what_one_operation_writes_counts_as_one_storage(g: Nodes) -> None:
    a, b = g.new(), g.new()
    g.call(aten._foreach_mul_.Scalar, [a, b], 2)
    assert not g.free(g.write(a), g.read(b))


def test_a_reshape_counts_as_a_view(g: Nodes) -> None:
    a = g.new()
    read = g.read(g.call(aten.reshape.default, a, [-1]))
    assert g.must(read, g.write(a))


def test_a_lift_counts_as_a_view(g: Nodes) -> None:
    a = g.new()
    read = g.read(a)
    assert g.must(read, g.write(g.call(aten.lift.default, a)))


# Inputs and constants


def test_nothing_moves_across_a_write_to_an_input(g: Nodes) -> None:
    before = g.new()
    write = g.write(g.input)
    after = g.read(g.other_input)
    assert g.must(before, write)
    assert g.must(write, after)


def test_nothing_moves_across_a_write_to_a_view_of_an_input(g: Nodes) -> None:
    before = g.read(g.other_input)
    view = g.call(aten.view.default, g.call(aten.transpose.int, g.input, 0, 1), [-1])
    write = g.write(view)
    assert g.must(before, write)
    assert g.must(write, g.read(g.other_input))


def test_nothing_moves_across_a_write_to_a_constant(g: Nodes) -> None:
    constant, same = g.graph.get_attr("constant"), g.graph.get_attr("constant")
    before = g.read(same)
    write = g.write(constant)
    after = g.read(same)
    assert g.must(before, write)
    assert g.must(write, after)


# Random numbers


def test_operations_that_draw_random_numbers_keep_their_order(g: Nodes) -> None:
    a, b = g.new(), g.new()
    draws = [
        g.call(aten.rand_like.default, a),
        g.call(aten.native_dropout.default, b, 0.5, True),
        g.call(aten.bernoulli_.float, a, 0.5),
        g.call(aten.randperm.default, 3),
    ]
    assert all(g.must(first, then) for first, then in itertools.pairwise(draws))
    assert g.free(draws[0], g.read(b))


# Collectives


def test_computation_is_free_to_move_across_a_launch_and_its_wait(g: Nodes) -> None:
    a, b = g.new(), g.new()
    launch = g.launch(a)
    compute = g.read(b)
    wait = g.wait(launch)
    assert g.must(launch, wait)
    assert g.free(compute, launch)
    assert g.free(compute, wait)
    assert g.free(wait, g.read(a))


def test_two_launches_and_their_waits_are_free_to_swap(g: Nodes) -> None:
    one, two = g.launch(g.new()), g.launch(g.new())
    first, second = g.wait(one), g.wait(two)
    assert g.free(one, two)
    assert g.free(first, second)


def test_the_input_of_a_launch_is_written_only_after_the_wait(g: Nodes) -> None:
    a = g.new()
    wait = g.wait(g.launch(a))
    write = g.write(a)
    assert g.must(wait, write)


def test_the_input_of_a_launch_is_written_before_it_through_any_view(g: Nodes) -> None:
    a = g.new()
    view = g.call(aten.view.default, a, [-1])
    write = g.write(view)
    launch = g.launch(a)
    wait = g.wait(launch)
    assert g.must(write, launch)
    assert g.must(wait, g.write(view))


def test_a_write_between_a_launch_and_its_wait_stays_there(g: Nodes) -> None:
    a = g.new()
    launch = g.launch(a)
    write = g.write(a)
    wait = g.wait(launch)
    assert g.must(launch, write)
    assert g.must(write, wait)


def test_what_a_launch_returned_is_read_only_after_the_wait(g: Nodes) -> None:
    launch = g.launch(g.new())
    wait = g.wait(launch)
    read, view = g.read(launch), g.call(aten.view.default, launch, [-1])
    assert g.must(wait, read)
    assert g.must(wait, view)
    assert g.free(read, view)


def test_the_result_of_a_wait_is_what_was_launched(g: Nodes) -> None:
    launch = g.launch(g.new())
    wait = g.wait(launch)
    read = g.read(launch)
    assert g.must(read, g.write(wait))


def test_an_in_place_collective_writes_its_argument_until_the_wait(g: Nodes) -> None:
    a = g.new()
    before, launch = g.read(a), g.launch_in_place(a)
    wait = g.wait(launch)
    after = g.read(a)
    assert g.must(before, launch)
    assert g.must(wait, after)
    assert g.free(wait, g.new())


def test_an_in_place_collective_writes_every_view_of_its_argument(g: Nodes) -> None:
    a = g.new()
    view = g.call(aten.view.default, a, [-1])
    wait = g.wait(g.launch_in_place(a))
    assert g.must(wait, g.read(view))


def test_a_coalesced_launch_reads_all_of_its_inputs_until_its_waits(g: Nodes) -> None:
    a, b = g.new(), g.new()
    launch = g.call(c10d.all_reduce_coalesced.default, [a, b], "sum", "0")
    waits = [g.wait(g.call(operator.getitem, launch, index)) for index in range(2)]
    assert g.free(*waits)
    write = g.write(b)
    assert all(g.must(wait, write) for wait in waits)


def test_a_raw_item_of_a_coalesced_launch_is_read_only_after_its_wait(g: Nodes) -> None:
    launch = g.call(c10d.all_reduce_coalesced.default, [g.new(), g.new()], "sum", "0")
    item = g.call(operator.getitem, launch, 0)
    wait = g.wait(item)
    assert g.must(wait, g.read(item))


def test_a_raw_read_comes_after_all_waits_that_came_before_it(g: Nodes) -> None:
    launch = g.launch(g.new())
    waits = [g.wait(launch), g.wait(launch)]
    read = g.read(launch)
    assert all(g.must(wait, read) for wait in waits)


def test_a_wait_for_something_else_than_a_launch_waits_for_nothing(g: Nodes) -> None:
    a = g.new()
    wait, read = g.wait(a), g.read(a)
    assert g.free(wait, read)
    assert g.must(wait, g.write(a))


def test_a_wait_for_the_argument_of_an_in_place_collective_is_its_wait(g: Nodes) -> None:
    a = g.new()
    g.launch_in_place(a)
    wait = g.wait(a)
    assert g.must(wait, g.read(a))


def test_an_input_is_read_only_after_the_wait_of_an_in_place_collective_on_another(g: Nodes) -> None:
    wait = g.wait(g.launch_in_place(g.input))
    assert g.must(wait, g.read(g.other_input))  # it may be a view of the same tensor


# Fences


@pytest.mark.parametrize(
    "call",
    [
        lambda g, a: g.call(foreign.record.default, a),
        lambda g, a: g.call(foreign.shake.default, a),
        lambda g, a: g.call(torch.sin, a),
        lambda g, a: g.call(print, a),
        lambda g, a: g.call(operator.iadd, a, 1),
        lambda g, a: g.call(aten._print.default, "text"),
        lambda g, a: g.graph.call_method("sin", (a,)),
        lambda g, a: g.graph.call_module("layer", (a,)),
    ],
    ids=["operator", "mutating operator", "function", "print", "iadd", "effect", "method", "module"],
)
def test_nothing_moves_across_what_is_not_understood(g: Nodes, call: Callable[[Nodes, fx.Node], fx.Node]) -> None:
    a, before = g.new(), g.new()
    launch = g.launch(g.new())
    fence = call(g, a)
    wait, after = g.wait(launch), g.new()
    assert g.must(before, fence)
    assert g.must(launch, fence)
    assert g.must(fence, wait)
    assert g.must(fence, after)


def test_what_lies_between_two_fences_is_free_to_move_there(g: Nodes) -> None:
    first = g.call(foreign.record.default, g.input)
    a, b = g.new(), g.new()
    second = g.call(foreign.record.default, g.input)
    assert g.free(a, b)
    assert g.must(first, a)
    assert g.must(b, second)


@pytest.mark.parametrize("method", [True, False], ids=["method", "operator"])
def test_what_is_not_understood_may_return_its_argument(g: Nodes, method: bool) -> None:
    a = g.new()
    result = g.graph.call_method("view", (a, -1)) if method else g.call(foreign.record.default, a)
    read = g.read(a)
    assert g.must(read, g.write(result))


def test_what_is_not_understood_may_return_an_input(g: Nodes) -> None:
    result = g.call(foreign.record.default, g.input)
    read = g.read(g.other_input)
    assert g.must(read, g.write(result))


# Lanes


def stage(pure: bool) -> StageGraph:
    g = Nodes()
    g.graph.output((g.read(g.new()) if pure else g.write(g.input),))
    example = torch.ones(3)
    return StageGraph(
        g.graph, [Port.of("input", "x", example), Port.of("input", "y", example)], [Port.of("output", "", example)]
    )


def test_the_lanes_of_a_multiplexed_pure_graph_are_independent() -> None:
    pure = stage(pure=True)
    assert predecessors(body(multiplex(pure, pure).graph)) == [[], [0], [], [2]]


def test_a_write_to_an_input_in_one_lane_is_a_fence_in_all() -> None:
    lanes = multiplex(stage(pure=True), stage(pure=False))
    assert predecessors(body(lanes.graph)) == [[], [0], [0, 1]]


def test_an_operator_of_torchscript_alone_is_a_fence(g: Nodes) -> None:
    node = g.graph.call_function(torch.ops.aten.gamma.int, (3,))
    assert traits(node).fence
