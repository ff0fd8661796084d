"""Orders of random graphs, judged by a slow reference of what an order must keep, and by running them.

The reference is written from the definition, pair by pair, on the memory that the values really have in a run. Two
operations conflict, so that their order in the program stays, if

    one uses the other's value;
    both touch one storage and one of the two writes it, where a launch touches its inputs until its wait, and the wait
    writes what the launch returned;
    both draw random numbers;
    one of them is not understood, or writes an input or a constant.

``reorder`` does not know the memory. Where it cannot tell storages apart it counts them as one (``merged``): a reshape
and its argument, what one operation writes, what an operation that is not understood takes and returns, all that one
launch returns, all inputs. So it must keep at least the exact conflicts and at most the merged ones; where the two
agree, and they do for most graphs, every order is accepted or refused exactly as the definition says.
"""

import dataclasses
import operator
import random
import re
from collections.abc import Hashable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from annopipe.errors import OrderError
from annopipe.graphs.dependencies import predecessors
from annopipe.graphs.multiplexing import multiplex
from annopipe.graphs.ports import Port
from annopipe.graphs.reordering import check_order, relink, reorder
from annopipe.graphs.stage_graph import StageGraph, body
from tests.graphs.random_graphs import SIDE_EFFECTS, Program, addresses, foreign, random_program, run_node, share_alike

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

WRITE_FIRST = {
    aten.sin_.default,
    aten.copy_.default,
    aten.add_.Tensor,
    aten.bernoulli_.float,
    aten._foreach_mul_.Scalar,
}
WRITE_FIRST |= {c10d.all_reduce_.default, foreign.shake.default}
DRAW = {aten.rand_like.default, aten.native_dropout.default, aten.bernoulli_.float}
LAUNCH = {c10d.all_reduce.default, c10d.all_reduce_.default, c10d.all_to_all_single.default}
LAUNCH |= {c10d.all_reduce_coalesced.default}
CHUNKS, GRAPHS_PER_CHUNK = 8, 350


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# The reference


@dataclasses.dataclass
class Reference:
    """Conflicts of a program by the definition. Sets of positions are the bits of integers.

    before: for each node the earlier ones that it conflicts with.  all_before: the same with what these conflict with.
    """

    before: list[int]
    all_before: list[int]


def exact(program: Program) -> Reference:
    return _reference(program, {}, merged=False)


def merged(program: Program) -> Reference:
    """What may be kept where storages that cannot be told apart without running count as one."""
    same: dict[int, int] = {}
    for node in body(program.stage.graph):
        groups = [written(node, program)]
        if node.target in {aten.reshape.default, c10d.all_reduce_coalesced.default} or unknown(node):
            groups.append(addresses(program.values[node]))
        if (node.target is aten.reshape.default or unknown(node)) and not written(node, program):
            groups[-1] |= addresses([program.values[n] for n in node.all_input_nodes])
        for group in groups:
            for one in group:
                first, second = _root(same, min(group)), _root(same, one)
                same[first] = second
    return _reference(program, same, merged=True)


def _root(same: dict[int, int], address: int) -> int:
    while (parent := same.get(address, address)) != address:
        address = parent
    return address


def written(node: fx.Node, program: Program) -> frozenset[int]:
    if node.target in WRITE_FIRST:
        return addresses(fx.node.map_arg(node.args[0], program.values.__getitem__))
    return addresses(program.values[node]) if node.target is aten.mul.out else frozenset()


def unknown(node: fx.Node) -> bool:
    return node.op == "call_method" or node.target in {foreign.record.default, foreign.shake.default}


def _reference(program: Program, same: dict[int, int], *, merged: bool) -> Reference:
    values, nodes = program.values, body(program.stage.graph)
    outside = addresses([value for node, value in values.items() if node.op in ("placeholder", "get_attr")])
    outside = frozenset(_root(same, address) for address in outside)
    touches, writes, fences = [], [], []
    filled: dict[int, fx.Node] = {}  # a storage that a launch fills -> the launch
    waited: set[int] = set()  # storages that are complete
    for node in nodes:
        write = set(written(node, program))
        picks = node.target is operator.getitem  # takes one item and touches no other
        touch = addresses([values[node], *([] if picks else [values[n] for n in node.all_input_nodes])])
        fence = bool({_root(same, address) for address in write} & outside)
        if node.target in LAUNCH:
            filled |= dict.fromkeys(addresses(values[node]), node)
            waited -= addresses(values[node])
        elif node.target is c10d.wait_tensor.default:
            launch = filled.get(min(addresses(values[node])))
            if launch is not None and (merged or not addresses(values[node]) & waited):  # a second wait finds it done
                waited |= addresses(values[node])
                touch |= addresses([values[n] for n in launch.all_input_nodes])
                write |= addresses(values[launch] if merged else values[node])
                fence |= merged and bool({_root(same, address) for address in write} & outside)
        touches.append({_root(same, address) for address in touch | write})
        writes.append({_root(same, address) for address in write})
        fences.append(fence or unknown(node))
    before: list[int] = []
    all_before: list[int] = []
    for j, later in enumerate(nodes):
        conflicts = 0
        for i, earlier in enumerate(nodes[:j]):
            if (
                earlier in later.all_input_nodes
                or touches[i] & writes[j]
                or writes[i] & touches[j]
                or (earlier.target in DRAW and later.target in DRAW)
                or fences[i]
                or fences[j]
            ):
                conflicts |= 1 << i
        before.append(conflicts)
        all_before.append(closed(conflicts, all_before))
    return Reference(before, all_before)


def closed(direct: int, all_before: list[int]) -> int:
    return direct | _union(all_before[i] for i in range(len(all_before)) if direct >> i & 1)


def _union(sets: Iterator[int]) -> int:
    result = 0
    for one in sets:
        result |= one
    return result


def random_order(rng: random.Random, before: list[int]) -> list[int]:
    """A random order in which every position comes after those in its set."""
    order: list[int] = []
    done = 0
    while len(order) < len(before):
        ready = [i for i in range(len(before)) if not done >> i & 1 and not before[i] & ~done]
        order.append(ready[rng.randrange(len(ready))])
        done |= 1 << order[-1]
    return order


def reversible(reference: Reference, truth: Reference) -> list[tuple[int, int]]:
    """True conflicts (i, j) with nothing between the two that ties them anyway: orders exist that break only these."""
    return [
        (i, j)
        for j, conflicts in enumerate(truth.before)
        for i in range(j)
        if conflicts >> i & 1
        and not any(reference.all_before[j] >> k & 1 and reference.all_before[k] >> i & 1 for k in range(i + 1, j))
    ]


# Running


@dataclasses.dataclass
class Outcome:
    """All that a run of a program leaves behind, as bytes, so that equal is bitwise equal."""

    outputs: list[Any]
    inputs: list[Any]
    constants: list[Any]
    side_effects: list[bytes]
    random_state: bytes


def run(program: Program, stage: StageGraph, *, generated_code: bool = False) -> Outcome:
    """Run ``stage``, an order of ``program``, on fresh copies of the inputs; node by node unless by generated code."""
    inputs = share_alike(program.inputs)
    constants = {name: value.clone() for name, value in stage.attributes.items()}
    SIDE_EFFECTS.clear()
    torch.manual_seed(1)
    outputs: Any
    if generated_code:
        outputs = list(stage(inputs).values())
    else:
        values: dict[fx.Node, Any] = {}
        arguments = iter(inputs.values())
        for node in stage.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(arguments)
            elif node.op == "get_attr":
                values[node] = stage.attributes[node.target]
            elif node.op != "output":
                values[node] = run_node(node, values)
        outputs = fx.node.map_arg(stage.graph.output_node().args[0], values.__getitem__)
    left = _frozen(list(stage.attributes.values()))
    for name, value in constants.items():
        stage.attributes[name].copy_(value)
    state = torch.get_rng_state().numpy().tobytes()
    return Outcome(_frozen(outputs), _frozen(list(inputs.values())), left, list(SIDE_EFFECTS), state)


def _frozen(tree: Any) -> list[Hashable]:
    leaves = pytree.tree_leaves(tree)
    return [(str(t.dtype), tuple(t.shape), t.contiguous().numpy().tobytes()) for t in leaves if isinstance(t, Tensor)]


def check(program: Program, rng: random.Random, *, orders: int, generated_code: bool = False) -> int:
    """Everything that must hold for one program; returns how many orders were tried."""
    nodes = body(program.stage.graph)
    truth, documented = exact(program), merged(program)
    kept: list[int] = []
    for earlier in predecessors(nodes):
        kept.append(closed(sum(1 << i for i in earlier), kept))
    for j, node in enumerate(nodes):
        missing, extra = truth.all_before[j] & ~kept[j], kept[j] & ~documented.all_before[j]
        assert not missing, f"{node} may run before {[n for i, n in enumerate(nodes) if missing >> i & 1]}"
        assert not extra, f"{node} is kept after {[n for i, n in enumerate(nodes) if extra >> i & 1]}"

    expected = None if program.racy else run(program, program.stage, generated_code=generated_code)
    text = str(program.stage.graph)
    for _ in range(orders):
        order = random_order(rng, documented.before)
        result = reorder(program.stage, [nodes[i] for i in order])
        assert [node.name for node in body(result.graph)] == [nodes[i].name for i in order]
        if expected is not None:
            assert run(program, result, generated_code=generated_code) == expected, f"other results in order {order}"
    if truth.all_before != documented.all_before and expected is not None:  # the definition itself holds
        order = random_order(rng, truth.before)
        result = program.stage.copy()
        relink(result.graph, [body(result.graph)[i] for i in order])
        assert run(program, result) == expected, f"the reference allows {order}, which has other results"
    pairs = reversible(documented, truth)
    for i, j in rng.sample(pairs, min(orders, len(pairs))):
        swapped = list(documented.all_before)
        swapped[j] &= ~(1 << i)
        swapped[i] |= 1 << j
        order = random_order(rng, swapped)
        with pytest.raises(OrderError, match=f"^{nodes[j]} stands before {nodes[i]}, which must come first"):
            reorder(program.stage, [nodes[k] for k in order])
    assert str(program.stage.graph) == text, "reorder changed the graph that it was given"
    return orders + min(orders, len(pairs))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_of_random_graphs_every_legal_order_is_equal_and_every_illegal_one_refused(chunk: int) -> None:
    tried = 0
    for seed in range(chunk * GRAPHS_PER_CHUNK, (chunk + 1) * GRAPHS_PER_CHUNK):
        rng = random.Random(seed)
        program = random_program(rng)
        try:
            tried += check(program, rng, orders=2)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}\n{program.stage.graph}") from error
    assert tried > 3 * GRAPHS_PER_CHUNK


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_the_generated_code_of_every_legal_order_is_equal(rng: random.Random) -> None:
    program = random_program(rng)
    note(str(program.stage.graph))
    check(program, rng, orders=1, generated_code=True)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_an_order_that_has_not_each_node_once_is_refused(rng: random.Random) -> None:
    program = random_program(rng)
    nodes = body(program.stage.graph)
    order = [nodes[i] for i in random_order(rng, merged(program).before)]
    at = rng.randrange(len(order))
    without = order[:at] + order[at + 1 :]
    with pytest.raises(OrderError, match=rf"^1 of {len(nodes)} nodes are missing in the order: {order[at]}$"):
        reorder(program.stage, without)
    with pytest.raises(OrderError, match=f"^{order[at]} stands twice in the order: each node runs exactly once$"):
        reorder(program.stage, [*order, order[at]])
    stranger = body(program.stage.copy().graph)[at]
    with pytest.raises(OrderError, match=f"^the order has 1 nodes that are not in the graph, such as {stranger}$"):
        reorder(program.stage, [*without, stranger])
    placeholder = next(iter(program.stage.graph.nodes))
    with pytest.raises(OrderError, match=f"such as {placeholder}$"):
        reorder(program.stage, [placeholder, *order])


# One graph, looked at closely: a, b free; c uses both


@pytest.fixture
def small() -> StageGraph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(aten.sin.default, (x,))
    b = graph.call_function(aten.cos.default, (x,))
    graph.output((graph.call_function(aten.add.Tensor, (a, b)),))
    example = torch.ones(3)
    return StageGraph(graph, [Port.of("input", "x", example)], [Port.of("output", "", example)])


def test_reorder_returns_a_graph_of_its_own_and_leaves_its_argument_alone(small: StageGraph) -> None:
    sine, cosine, total = body(small.graph)
    result = reorder(small, [cosine, sine, total])
    assert body(small.graph) == [sine, cosine, total]
    assert [node.name for node in body(result.graph)] == [cosine.name, sine.name, total.name]
    assert not set(result.graph.nodes) & set(small.graph.nodes)
    assert (result.inputs, result.outputs) == (small.inputs, small.outputs)
    assert torch.equal(result({"input.x": torch.ones(3)})["output"], small({"input.x": torch.ones(3)})["output"])


def test_the_code_of_the_module_follows_the_order(small: StageGraph) -> None:
    sine, cosine, total = body(small.graph)
    assert re.findall(r"aten\.(\w+)", small.module.code) == ["sin", "cos", "add"]
    assert re.findall(r"aten\.(\w+)", reorder(small, [cosine, sine, total]).module.code) == ["cos", "sin", "add"]


def test_a_refused_order_leaves_the_graph_alone(small: StageGraph) -> None:
    nodes = body(small.graph)
    with pytest.raises(OrderError):
        reorder(small, nodes[::-1])
    assert body(small.graph) == nodes


def test_the_message_names_both_nodes_and_the_reasons_there_may_be(small: StageGraph) -> None:
    with pytest.raises(OrderError) as refused:
        reorder(small, body(small.graph)[::-1])
    assert str(refused.value) == (
        "add_tensor stands before sin_default, which must come first: an input of it, or before it because of a "
        "mutation, a random number, a fence or an agreed order of collectives"
    )


def test_a_message_says_in_which_lane_and_region_a_node_lies(small: StageGraph) -> None:
    both = multiplex(small, small, lanes=["F", "B"])
    nodes = body(both.graph)
    with pytest.raises(OrderError, match=r"^add_tensor_1 \(B/stage\) stands before sin_default_1 \(B/stage\), which"):
        reorder(both, [*nodes[:3], nodes[5], nodes[3], nodes[4]])


def test_no_more_than_five_missing_nodes_are_named() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(tuple(graph.call_function(aten.sin.default, (x,)) for _ in range(7)))
    example = torch.ones(3)
    outputs = [Port.of("output", str(index), example) for index in range(7)]
    stage = StageGraph(graph, [Port.of("input", "x", example)], outputs)
    with pytest.raises(OrderError, match=r"^6 of 7 nodes are missing in the order: sin_default_1, .*, sin_default_5$"):
        reorder(stage, body(graph)[:1])


def test_an_order_by_positions_outside_the_graph_is_refused(small: StageGraph) -> None:
    nodes = body(small.graph)
    with pytest.raises(OrderError, match="^position 3 in the order is not one of the graph's 3 nodes$"):
        check_order(nodes, [0, 1, 3], predecessors(nodes))
