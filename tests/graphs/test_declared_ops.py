"""What users declare of operators: who may be declared as what, what it changes, and that it can be taken back."""

import operator
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn

import annopipe as ap
from annopipe.graphs import meta
from annopipe.graphs.declared_ops import Declared, declared
from annopipe.graphs.dependencies import predecessors
from annopipe.graphs.ops import (
    group_name,
    has_effect,
    is_declared,
    launch_of,
    note_declarations,
    set_group_name,
    traits,
)
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph, body
from tests.graphs.helpers import check_against_eager
from tests.graphs.modules import Function, leaf, plain

LIBRARY = torch.library.Library("declared_test", "DEF")
SCHEMAS = {
    "start": "(Tensor x, str where='ep') -> Tensor",
    "start_two": "(Tensor x, SymInt n, str group_name) -> (Tensor, Tensor)",
    "start_list": "(Tensor[] xs, str group) -> Tensor[]",
    "start_nothing": "(Tensor x, str group) -> ()",
    "start_number": "(Tensor x, str group) -> int",
    "start_into": "(Tensor x, Tensor(a!) out, str group) -> Tensor",
    "start_in_place": "(Tensor(a!) x, str group) -> Tensor(a!)",
    "start_view": "(Tensor(a) x, str group) -> Tensor(a)",
    "finish": "(Tensor x) -> Tensor",
    "finish_both": "(Tensor x, Tensor handle, float scale) -> Tensor",
    "finish_list": "(Tensor[] xs) -> Tensor[]",
    "finish_silently": "(Tensor handle) -> ()",
    "finish_number": "(int handle) -> Tensor",
    "finish_in_place": "(Tensor(a!) x) -> ()",
    "gate": "(Tensor x) -> Tensor",
    "log": "(Tensor x) -> ()",
    "made_of_others": "(Tensor x) -> Tensor",
}
for name, schema in SCHEMAS.items():
    LIBRARY.define(name + schema)
LIBRARY.impl("made_of_others", lambda x: x.sin().cos(), "CompositeImplicitAutograd")
LIBRARY.impl("gate", lambda x: x * x.sigmoid(), "CompositeExplicitAutograd")
ops, aten = torch.ops.declared_test, torch.ops.aten


@pytest.fixture(autouse=True)
def nothing_stays_declared() -> Iterator[None]:
    yield
    for name in SCHEMAS:
        ap.forget_operator(f"declared_test::{name}")


@pytest.fixture
def x() -> fx.Node:
    return fx.Graph().placeholder("x")


def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    node = next(a for a in args if isinstance(a, fx.Node))
    return node.graph.call_function(target, args, kwargs)


def item(node: fx.Node, index: int) -> fx.Node:
    return node.graph.call_function(operator.getitem, (node, index))


def before(node: fx.Node) -> set[fx.Node]:
    """All nodes that must come before ``node``, directly or not."""
    nodes = body(node.graph)
    direct, found = predecessors(nodes), set[fx.Node]()
    pending = [nodes.index(node)]
    while pending:
        pending += (earlier := direct[pending.pop()])
        found |= {nodes[i] for i in earlier}
    return found


# What a declaration changes


def test_a_declared_pair_is_a_launch_and_its_wait(x: fx.Node) -> None:
    launch = call(ops.start.default, x)
    wait = call(ops.finish.default, launch)
    assert traits(launch).fence
    assert traits(wait).fence
    ap.register_comm(ops.start, wait=ops.finish, group="where")
    assert (traits(launch).launch, traits(launch).fence, has_effect(launch)) == (True, False, False)
    assert (traits(wait).wait, traits(wait).fence, has_effect(wait)) == (True, False, False)
    assert launch_of(wait) is launch
    assert launch_of(call(ops.finish.default, x)) is None


def test_the_default_wait_is_that_of_functional_collectives(x: fx.Node) -> None:
    ap.register_comm("declared_test::start", group="where")
    launch = call(ops.start.default, x)
    assert launch_of(call(torch.ops._c10d_functional.wait_tensor.default, launch)) is launch
    assert launch_of(call(ops.finish.default, launch)) is None


def test_another_launchs_wait_waits_for_nothing(x: fx.Node) -> None:
    ap.register_comm(ops.start, wait=ops.finish, group="where")
    ap.register_comm(ops.start_two, wait=ops.finish_both)
    launch = call(ops.start.default, x)
    assert launch_of(call(torch.ops._c10d_functional.wait_tensor.default, launch)) is None
    assert launch_of(call(ops.finish_both.default, launch, x, 1.0)) is None
    collective = call(torch.ops._c10d_functional.all_reduce.default, x, "sum", "0")
    assert launch_of(call(ops.finish.default, collective)) is None


def test_a_wait_finds_its_launch_through_any_argument(x: fx.Node) -> None:
    ap.register_comm(ops.start_two, wait=ops.finish_both)
    ap.register_comm(ops.start_list, wait=ops.finish_list)
    launch = call(ops.start_two.default, x, 3, "ep")
    assert launch_of(call(ops.finish_both.default, item(launch, 0), item(launch, 1), 1.0)) is launch
    assert launch_of(call(ops.finish_both.default, x, item(launch, 1), 1.0)) is launch
    several = x.graph.call_function(ops.start_list.default, ([x, x], "ep"))
    results = [item(several, 0), item(several, 1)]
    assert launch_of(x.graph.call_function(ops.finish_list.default, (results,))) is several


def test_the_group_comes_from_an_argument_its_default_or_is_fixed(x: fx.Node) -> None:
    with ap.register_comm(ops.start, group="where"):
        assert group_name(call(ops.start.default, x, "a")) == "a"
        assert group_name(call(ops.start.default, x, where="b")) == "b"
        assert group_name(call(ops.start.default, x)) == "ep"
    with ap.register_comm(ops.start_two):
        assert group_name(call(ops.start_two.default, x, 3, "c")) == "c"


def test_a_group_that_an_argument_holds_can_be_changed(x: fx.Node) -> None:
    with ap.register_comm(ops.start, group="where"):
        for launch in (call(ops.start.default, x, "a"), call(ops.start.default, x)):
            set_group_name(launch, "b")
            assert group_name(launch) == "b"


def test_a_fixed_group_cannot_be_changed(x: fx.Node, group_of_one: dist.ProcessGroup) -> None:
    ap.register_comm(ops.start, group=group_of_one)
    with pytest.raises(ap.GraphError, match="was declared to run on group .*, so it cannot run on b"):
        set_group_name(call(ops.start.default, x), "b")


def test_a_process_group_may_be_given_itself_or_by_name(x: fx.Node, group_of_one: dist.ProcessGroup) -> None:
    for group in (group_of_one, group_of_one.group_name):
        with ap.register_comm(ops.start, wait=ops.finish, group=group):
            assert group_name(call(ops.start.default, x, "other")) == group_of_one.group_name


def test_what_is_read_behind_a_silent_wait_stays_behind_it(x: fx.Node) -> None:
    ap.register_comm(ops.start_two, wait=ops.finish_silently)
    launch = call(ops.start_two.default, x, 3, "ep")
    rows, handle = item(launch, 0), item(launch, 1)
    wait = call(ops.finish_silently.default, handle)
    read, other = call(aten.sin.default, rows), call(aten.cos.default, x)
    again = call(aten.exp.default, rows)
    assert has_effect(wait)
    assert launch_of(wait) is launch
    assert {launch, wait} <= before(read) & before(again)
    assert wait not in before(other)
    assert other not in before(wait)


def test_a_part_of_a_graph_takes_the_silent_waits_of_its_launches_along(x: fx.Node) -> None:
    ap.register_comm(ops.start, wait=ops.finish_silently, group="where")
    first, second = call(ops.start.default, x), call(ops.start.default, x)
    for launch in (first, second):
        call(ops.finish_silently.default, launch)
    x.graph.output((first, call(aten.sin.default, second)))
    one = torch.ones(2)
    source = StageGraph(x.graph, [Port.of("input", "x", one)], [Port.of("output", n, one) for n in ("a", "b")])
    for output, last in (("output.a", []), ("output.b", [aten.sin.default])):
        part = ap.extract(source, [output])
        assert [n.target for n in body(part.graph)] == [ops.start.default, ops.finish_silently.default, *last]


def test_a_launch_that_nobody_waits_for_silently_is_no_place_to_cut(x: fx.Node) -> None:
    ap.register_comm(ops.start, wait=ops.finish, group="where")
    launch = call(ops.start.default, x)
    x.graph.output((call(ops.finish.default, launch),))
    one = torch.ones(2)
    source = StageGraph(x.graph, [Port.of("input", "x", one)], [Port.of("output", "a", one)])
    with pytest.raises(ap.GraphError, match="cut at the launch"):
        ap.extract(source, [(Port.of("saved", "s", one), launch)])


def test_a_wait_without_its_launch_is_a_fence(x: fx.Node) -> None:
    ap.register_comm(ops.start, wait=ops.finish, group="where")
    first, wait = call(aten.sin.default, x), call(ops.finish.default, x)
    last = call(aten.cos.default, x)
    assert first in before(wait)
    assert wait in before(last)


def test_one_wait_for_two_launches_is_refused(x: fx.Node) -> None:
    ap.register_comm(ops.start, wait=ops.finish_both, group="where")
    both = call(ops.finish_both.default, call(ops.start.default, x), call(ops.start.default, x), 1.0)
    with pytest.raises(ap.GraphError, match="finish_both.default waits for .* and .* at once"):
        note_declarations(both.graph.nodes)


# Pure operators


class Gated(nn.Module):
    """An operator of the user's own between two others that do not need it."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = x.sin()
        gated = ops.gate(x)
        return first, gated, x.cos()


def gate_and_neighbours(graphs: ap.StageGraphs) -> tuple[fx.Node, fx.Node, fx.Node]:
    nodes = body(graphs.forward.graph)
    targets = (aten.sin.default, ops.gate.default, aten.cos.default)
    first, gate, last = (next(n for n in nodes if n.target is target) for target in targets)
    return first, gate, last


def test_a_declared_pure_operator_moves_and_another_one_is_a_fence() -> None:
    first, gate, last = gate_and_neighbours(ap.trace(Gated(), (plain(3),)))
    assert first in before(gate)
    assert gate in before(last)
    with ap.register_pure(ops.gate):
        graphs = ap.trace(Gated(), (plain(3),))
    first, gate, last = gate_and_neighbours(graphs)
    assert first not in before(gate)
    assert gate not in before(last)
    order = [n for n in body(graphs.forward.graph) if n is not gate]
    values = {"input.x": plain(3)}
    moved = ap.reorder(graphs.forward, [gate, *order])(values)
    assert all(torch.equal(moved[name], value) for name, value in graphs.forward(values).items())
    with pytest.raises(ap.OrderError, match="must come first"):
        other = ap.trace(Gated(), (plain(3),))
        _, gate, _ = gate_and_neighbours(other)
        ap.reorder(other.forward, [gate, *(n for n in body(other.forward.graph) if n is not gate)])


def test_an_unused_result_of_a_pure_operator_is_not_computed() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        ops.gate(x)
        return x.sin()

    def targets() -> list[Any]:
        return [n.target for n in body(ap.trace(Function(forward), (plain(3),)).forward.graph)]

    assert ops.gate.default in targets()
    with ap.register_pure(ops.gate):
        assert ops.gate.default not in targets()


def test_a_pure_operator_with_a_gradient_gives_what_eager_gives() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        return ap_twice(x.sin()).cos()

    @torch.library.custom_op("declared_test_notebook::twice", mutates_args=())
    def ap_twice(x: Tensor) -> Tensor:
        return x * 2

    ap_twice.register_fake(torch.empty_like)
    ap_twice.register_autograd(lambda _, gradient: ap_twice(gradient))
    with ap.register_pure(ap_twice):
        graphs = check_against_eager(Function(forward), (leaf(3),))
    assert all(not traits(n).fence for g in (graphs.forward, graphs.backward) for n in body(g.graph))


# Lifetime


def test_a_graph_keeps_what_was_declared_when_it_was_traced() -> None:
    declaration = ap.register_pure(ops.gate)
    _, then, _ = gate_and_neighbours(graphs := ap.trace(Gated(), (plain(3),)))
    declaration.forget()
    assert declared(ops.gate.default) is None
    _, now, _ = gate_and_neighbours(ap.trace(Gated(), (plain(3),)))
    ap.register_pure(ops.gate)
    copy = next(n for n in body(graphs.forward.copy().graph) if n.target is ops.gate.default)
    assert [is_declared(n) for n in (then, copy, now)] == [True, True, False]
    assert [traits(n).fence for n in (then, copy, now)] == [False, False, True]
    assert meta.placed(now).kind == "compute"


def test_the_block_of_a_with_statement_is_its_life_also_on_an_exception() -> None:
    with pytest.raises(KeyError), ap.register_comm(ops.start, wait=ops.finish, group="where") as declaration:
        assert isinstance(declaration, Declared)
        assert repr(declaration) == "Declared('declared_test::start')"
        assert declared(ops.start.default) is not None
        assert declared(ops.finish.default) is not None
        raise KeyError
    assert declared(ops.start.default) is None
    assert declared(ops.finish.default) is None


def test_a_wait_stays_declared_as_long_as_one_launch_has_it() -> None:
    ap.register_comm(ops.start, wait=ops.finish, group="where")
    ap.register_comm(ops.start_two, wait=ops.finish)
    ap.forget_operator(ops.start)
    assert declared(ops.finish.default) is not None
    ap.forget_operator(ops.start_two.default)
    assert declared(ops.finish.default) is None


def test_what_is_declared_outside_stays_declared_behind_an_inner_block() -> None:
    ap.register_comm(ops.start, wait=ops.finish, group="where")
    with ap.register_comm(ops.start, wait=ops.finish, group="where"):
        pass
    assert declared(ops.start.default) is not None
    assert declared(ops.finish.default) is not None
    first, second = (ap.register_pure(ops.gate) for _ in range(2))
    first.__exit__(None, None, None)  # blocks of two threads, which end in any order
    assert declared(ops.gate.default) is not None
    second.__exit__(None, None, None)
    assert declared(ops.gate.default) is None
    for again in (ap.register_pure(ops.gate), ap.register_pure(ops.gate)):
        again.forget()
        assert declared(ops.gate.default) is None


def test_declaring_the_same_again_is_fine_and_differently_is_refused() -> None:
    for op in (ops.start, ops.start.default, "declared_test::start"):
        ap.register_comm(op, wait="declared_test::finish", group="where")
    with pytest.raises(
        ap.GraphError,
        match=r"declared_test::start is declared already, as a launch with wait declared_test::finish and group its "
        r"argument where, and now as pure: call ap.forget_operator\('declared_test::start'\) first",
    ):
        ap.register_pure(ops.start)
    with pytest.raises(ap.GraphError, match="declared already"):
        ap.register_comm(ops.start, group="where")
    with pytest.raises(ap.GraphError, match="declared_test::finish is declared already, as the wait of a launch"):
        ap.register_comm(ops.finish, wait=ops.finish_both, group="x")
    ap.forget_operator(ops.start)
    ap.register_pure(ops.start)


def test_a_refused_declaration_changes_nothing() -> None:
    ap.register_pure(ops.finish)
    with pytest.raises(ap.GraphError, match="declared_test::finish is declared already, as pure"):
        ap.register_comm(ops.start, wait=ops.finish, group="where")
    assert declared(ops.start.default) is None


def test_a_notebook_defines_and_declares_its_operator_again() -> None:
    found = []
    for _ in range(3):

        @torch.library.custom_op("declared_test_notebook::start", mutates_args=())
        def start(x: Tensor, group: str) -> Tensor:
            return x.clone()

        ap.register_comm(start)
        defined = torch.ops.declared_test_notebook.start.default
        assert declared(defined) is not None
        found.append(defined)
    ap.forget_operator("declared_test_notebook::start")
    assert declared(found[-1]) is None
    ap.forget_operator("declared_test_notebook::start")


def test_threads_that_declare_at_once_lose_nothing() -> None:
    names = [name for name in SCHEMAS if name in ("gate", "finish", "finish_both", "finish_list", "finish_number")]
    start = threading.Barrier(len(names))

    def declare(name: str) -> None:
        start.wait()
        for _ in range(200):
            ap.register_pure(f"declared_test::{name}").forget()
        ap.register_pure(f"declared_test::{name}")

    threads = [threading.Thread(target=declare, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(declared(getattr(ops, name).default) is not None for name in names)


# What is refused


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: ap.register_comm(torch.sin, group="x"), "is not an operator: pass torch.ops.namespace.name"),
        (lambda: ap.register_comm(print), "is not an operator"),
        (lambda: ap.register_pure(torch.ops.higher_order.cond), "is not an operator"),
        (lambda: ap.register_comm("start"), "there is no operator 'start': write 'namespace::name'"),
        (lambda: ap.register_comm("declared_test::missing"), "there is no operator 'declared_test::missing'"),
        (lambda: ap.register_pure("no where::at all"), "there is no operator 'no where::at all'"),
        (lambda: ap.register_comm(ops.start, wait="declared_test::mising"), "there is no operator"),
        (lambda: ap.register_comm(ops.start, wait=ops.start, group="where"), "cannot wait for itself"),
        (lambda: ap.register_comm(ops.start_nothing), "returns no tensor that a wait could take"),
        (lambda: ap.register_comm(ops.start_number), "returns no tensor that a wait could take"),
        (lambda: ap.register_comm(ops.start_into), "writes to its argument out: tracing would run it on a copy"),
        (lambda: ap.register_comm(ops.start_in_place), "writes to its argument x"),
        (lambda: ap.register_comm(ops.start_view), "says that it returns its argument or a view of it"),
        (lambda: ap.register_comm(ops.start_two, wait=ops.finish_number), "takes no tensor, so nothing says which"),
        (lambda: ap.register_comm(ops.start_two, wait=ops.finish_in_place), "writes to its argument x"),
        (lambda: ap.register_comm(ops.start, wait=ops.finish), "which process group does it use"),
        (lambda: ap.register_comm(ops.start, group="wher"), r"'wher' is neither an argument of it \(where, x\), nor"),
        (lambda: ap.register_comm(ops.start, group=3), "group=3 is neither an argument"),
        (lambda: ap.register_pure(ops.log), "returns nothing, so it would do nothing if it were pure"),
        (lambda: ap.register_pure(ops.start_into), "writes to its argument out"),
        (lambda: ap.register_pure(ops.made_of_others), "is made of other operators"),
        (lambda: ap.register_pure(torch.ops.aten.mm), "is PyTorch's or annopipe's own"),
        (lambda: ap.register_comm("_c10d_functional::all_reduce"), "is PyTorch's or annopipe's own"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(declare: Any, message: str) -> None:
    with pytest.raises(ap.GraphError, match=message):
        declare()


def test_a_name_that_is_no_group_is_refused(group_of_one: dist.ProcessGroup) -> None:
    assert group_of_one.size() == 1
    with pytest.raises(ap.GraphError, match="'nobody' is neither an argument"):
        ap.register_comm(ops.start, group="nobody")
