"""Stretches of random graphs in random orders: same results, same stretches, fixed nodes in exactly the order."""

import random
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from annopipe.compiling.stretches import cut
from annopipe.graphs import meta
from annopipe.graphs.dependencies import predecessors
from annopipe.graphs.regions import place
from annopipe.graphs.reordering import check_order, reorder
from annopipe.graphs.stage_graph import StageGraph, body
from tests.compiling.interpreting import interpreting
from tests.graphs.helpers import same
from tests.graphs.random_graphs import SIDE_EFFECTS, Program, random_program, share_alike


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def random_order(rng: random.Random, nodes: list[fx.Node]) -> list[fx.Node]:
    """A legal order."""
    before = [set(earlier) for earlier in predecessors(nodes)]
    order: list[int] = []
    while len(order) < len(nodes):
        ready = [i for i in range(len(nodes)) if i not in order and before[i] <= set(order)]
        order.append(rng.choice(ready))
    return [nodes[index] for index in order]


def prepared(rng: random.Random) -> tuple[Program, list[str]]:
    """A random program whose nodes know their values, with regions, and the keys of its nodes."""
    program = random_program(rng)
    for node, value in program.values.items():
        meta.set_value(node, value)
    for node in body(program.stage.graph):
        meta.set_tag(node, rng.choice("ab"), "compute", "tag")
    place(program.stage)
    return program, [meta.placed(node).key for node in body(program.stage.graph)]


def outcome(graph: StageGraph, program: Program) -> list[object]:
    """Everything that a run leaves behind."""
    inputs = share_alike(program.inputs)
    attributes = {name: value.clone() for name, value in program.stage.attributes.items()}
    torch.manual_seed(5)
    SIDE_EFFECTS.clear()
    results = fx.GraphModule(attributes, graph.graph)(*(inputs[port.name] for port in graph.inputs))
    return [*results, *inputs.values(), *attributes.values(), torch.get_rng_state(), torch.tensor(len(SIDE_EFFECTS))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_every_order_of_a_graph_in_stretches_gives_what_the_graph_gives(rng: random.Random) -> None:
    program, keys = prepared(rng)
    if program.racy:
        return
    expected = outcome(program.stage, program)
    graph = reorder(program.stage, random_order(rng, body(program.stage.graph)))
    found = outcome(interpreting(graph, keys)[0], program)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_stretches_do_not_depend_on_the_order_and_fixed_nodes_keep_it(rng: random.Random) -> None:
    program, keys = prepared(rng)
    graph = reorder(program.stage, random_order(rng, body(program.stage.graph)))
    first, again = cut(program.stage), cut(graph, keys)
    assert [[n.name for n in s.nodes] for s in first.stretches] == [[n.name for n in s.nodes] for s in again.stretches]
    lowered, bounds = interpreting(graph, keys)
    _, in_program_order = interpreting(program.stage)
    assert [bound.form for bound in bounds] == [bound.form for bound in in_program_order]
    fixed = [node for node in body(graph.graph) if node in again.fixed]
    assert [node.name for node in fixed] == [
        node.name for node in body(lowered.graph) if node.name in {n.name for n in fixed}
    ]


def test_a_random_order_is_legal() -> None:
    program, _ = prepared(random.Random(3))
    nodes = body(program.stage.graph)
    order = random_order(random.Random(4), nodes)
    check_order(nodes, [nodes.index(node) for node in order], predecessors(nodes))
