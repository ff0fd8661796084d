"""The table of operations: what is understood, and how."""

import math
import operator
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives
from torch import fx

import annopipe.models  # noqa: F401 - registers the exchange
from annopipe.graphs.ops import (
    group_name,
    has_effect,
    launch_of,
    sharing_arguments,
    traits,
    view_chain,
    written_arguments,
)

aten, prims, c10d = torch.ops.aten, torch.ops.prims, torch.ops._c10d_functional


def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    graph = args[0].graph if args and isinstance(args[0], fx.Node) else fx.Graph()
    return graph.call_function(target, args, kwargs)


@pytest.fixture
def x() -> fx.Node:
    return fx.Graph().placeholder("x")


PURE = [
    *(
        aten.add.Tensor,
        aten.mm.default,
        aten.view.default,
        aten.index.Tensor,
        aten.sym_size.int,
        aten.empty.memory_format,
    ),
    *(prims.convert_element_type.default, operator.add, operator.getitem, operator.floordiv, math.floor, max, int),
    *(torch.sym_max, torch.sym_int, torch.sym_not, aten.native_dropout_backward.default),
]
FENCES = [
    *(print, setattr, operator.iadd, operator.setitem, operator.imul, operator.pos, torch.sin, torch.manual_seed),
    *(aten._print.default, aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.set_.source_Tensor),
    *(torch.ops.higher_order.cond, torch.ops.higher_order.with_effects),
    *([c10d.irecv.default] if hasattr(c10d, "irecv") else []),  # PyTorch 2.11 has none
]


def name(target: object) -> str:
    """The target as text, the same in every process."""
    return str(target).partition(" at 0x")[0]


@pytest.mark.parametrize("target", PURE, ids=name)
def test_understood_operations_without_effect_are_pure(target: Any) -> None:
    known = traits(call(target))
    assert (known.fence, known.random, known.check, known.writes) == (False, False, False, ())
    assert not has_effect(call(target))


@pytest.mark.parametrize("target", FENCES, ids=name)
def test_what_has_hidden_effects_or_is_unknown_is_a_fence(target: Any) -> None:
    assert traits(call(target)).fence
    assert has_effect(call(target))


@pytest.mark.parametrize(
    "target",
    [
        *(aten.rand.default, aten.rand.generator, aten.randn_like.default, aten.randperm.default, aten.normal_.default),
        *(aten.native_dropout.default, aten.bernoulli.p, aten.multinomial.default, aten.rrelu_with_noise.default),
        *(aten._fused_dropout.default, prims.normal.default),
    ],
    ids=name,
)
def test_operations_that_draw_are_known(target: Any) -> None:
    assert traits(call(target)).random


@pytest.mark.parametrize("name", ["flash_attention", "flash_attention_for_cpu", "efficient_attention"])
def test_attention_draws_if_it_has_dropout(x: fx.Node, name: str) -> None:
    target = getattr(aten, f"_scaled_dot_product_{name}").default
    names = [argument.name for argument in target._schema.arguments]
    before = (x,) * names.index("dropout_p")
    assert traits(call(target, *before, 0.1)).random
    assert traits(call(target, *before, dropout_p=0.1)).random
    assert not traits(call(target, *before, 0.0)).random
    assert not traits(call(target, *before)).random


@pytest.mark.parametrize(
    "target",
    [
        aten._assert_async.msg,
        aten._assert_scalar.default,
        aten._linalg_check_errors.default,
        aten.sym_constrain_range.default,
    ],
    ids=name,
)
def test_checks_stay_and_order_nothing(target: Any) -> None:
    node = call(target)
    assert traits(node).check
    assert has_effect(node)
    assert not traits(node).fence


@pytest.mark.parametrize(
    "target",
    [aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default],
    ids=name,
)
def test_host_reads_are_known(target: Any) -> None:
    assert traits(call(target)).host_read


def test_calls_of_modules_and_methods_are_fences(x: fx.Node) -> None:
    assert traits(x.graph.call_method("sin", (x,))).fence
    assert traits(x.graph.call_module("layer", (x,))).fence
    assert not traits(x.graph.get_attr("constant")).fence
    assert not traits(x).fence


def test_what_is_written_is_found_by_position_by_keyword_and_in_lists(x: fx.Node) -> None:
    y = call(aten.sin.default, x)
    assert written_arguments(call(aten.add_.Tensor, x, y)) == [x]
    assert written_arguments(x.graph.call_function(aten.add_.Tensor, (), {"self": x, "other": y})) == [x]
    assert written_arguments(call(aten.add.out, y, y, out=x)) == [x]
    assert written_arguments(x.graph.call_function(aten._foreach_add_.List, ([x, y], [y, x]))) == [x, y]
    assert written_arguments(call(aten.max.dim_max, y, 0, max=x, max_values=y)) == [x, y]
    assert written_arguments(call(aten.add.Tensor, x, y)) == []


def test_what_a_result_may_share_memory_with(x: fx.Node) -> None:
    y = call(aten.sin.default, x)
    assert sharing_arguments(call(aten.view.default, x, [-1])) == [x]
    assert sharing_arguments(x.graph.call_function(aten.view.default, (), {"size": [-1], "self": x})) == [x]
    assert sharing_arguments(call(aten._unsafe_view.default, x, [-1])) == [x]
    assert sharing_arguments(call(aten.add_.Tensor, x, y)) == [x]
    assert sharing_arguments(call(c10d.wait_tensor.default, x)) == [x]
    assert sharing_arguments(call(aten.type_as.default, x, y)) == [x, y], (
        "it may return its argument, and does not say so"
    )
    assert sharing_arguments(call(torch.sin, x)) == [x], "not understood"
    assert sharing_arguments(call(aten.mm.default, x, y)) == []


def test_items_share_memory_with_what_they_are_picked_from_unless_it_makes_tensors(x: fx.Node) -> None:
    new, views = call(aten.sort.default, x), call(aten.split.Tensor, x, 1)
    unknown, tensor = x.graph.call_method("split", (x, 1)), call(aten.sin.default, x)
    assert sharing_arguments(call(operator.getitem, new, 0)) == []
    for source in (views, unknown, x):
        assert sharing_arguments(call(operator.getitem, source, 0)) == [source]
    assert sharing_arguments(call(operator.getitem, tensor, 0)) == [], "of a new tensor, that nobody else holds"


def test_a_chain_of_views_ends_at_its_base_and_tells_what_else_it_takes(x: fx.Node) -> None:
    base = call(aten.sin.default, x)
    size = call(aten.sym_size.int, x, 0)
    parts = x.graph.call_function(aten.split_with_sizes.default, (call(aten.t.default, base), [size, 2]))
    end = call(aten.reshape.default, call(operator.getitem, parts, 1), [-1, size])
    assert view_chain(end) == (base, [size, size])
    assert view_chain(base) == (base, [])
    assert view_chain(call(operator.getitem, call(aten.sort.default, base), 0))[1] == []


def test_a_wait_knows_its_launch_also_through_items_and_views(x: fx.Node) -> None:
    launch = call(c10d.all_reduce.default, x, "sum", "group")
    both = x.graph.call_function(c10d.all_reduce_coalesced.default, ([x, x], "sum", "group"))
    assert launch_of(call(c10d.wait_tensor.default, launch)) is launch
    assert launch_of(call(c10d.wait_tensor.default, call(aten.view.default, launch, [-1]))) is launch
    item = call(operator.getitem, both, 1)
    assert launch_of(call(c10d.wait_tensor.default, item)) is both
    assert launch_of(call(c10d.wait_tensor.default, call(aten.t.default, item))) is both
    assert launch_of(call(c10d.wait_tensor.default, call(c10d.wait_tensor.default, launch))) is None
    assert launch_of(call(c10d.wait_tensor.default, x)) is None
    assert launch_of(launch) is None


def test_the_group_of_a_launch_is_found_by_position_and_by_keyword(x: fx.Node) -> None:
    assert group_name(call(c10d.all_reduce.default, x, "sum", "ep")) == "ep"
    assert group_name(call(c10d.all_reduce.default, x, "sum", group_name="ep")) == "ep"
    assert group_name(call(torch.ops.annopipe.exchange.default, x, x, x, 3, "ep")) == "ep"
    assert group_name(call(c10d.wait_tensor.default, x)) == ""
