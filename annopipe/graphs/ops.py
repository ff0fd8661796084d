"""What an operation means for ordering: whether it launches, waits, reads on the host, draws random numbers or mutates.

This is the one table that says which operations are understood. What is not in it is a fence: nothing moves across it.

Adapter: the kinds of operators that a node can call are private names of ``torch._ops``.
"""

import dataclasses
import functools
import operator
from typing import Any

import torch
from torch import fx

__all__ = [
    "OpTraits",
    "group_name",
    "has_effect",
    "is_getitem",
    "is_operator",
    "launch_of",
    "sharing_arguments",
    "sorts",
    "traits",
    "view_chain",
    "written_arguments",
]

_LAUNCHES = frozenset(
    f"{namespace}::{op}"
    for namespace in ("_c10d_functional", "_c10d_functional_autograd")
    for op in (
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all_single",
        "broadcast",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    )
) | {"annopipe::exchange"}
_INPLACE_LAUNCHES = frozenset(
    f"_c10d_functional::{op}"
    for op in (
        "all_gather_into_tensor_out",
        "all_reduce_",
        "all_reduce_coalesced_",
        "broadcast_",
        "reduce_scatter_tensor_out",
    )
)
_WAITS = frozenset({"_c10d_functional::wait_tensor"})
# Host reads by PyTorch's own tags, without those that read only for some arguments (boolean masks as indices).
_HOST_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_NOT_ALWAYS_HOST = frozenset({"aten::index", "aten::repeat_interleave", "aten::one_hot"})
_SORTS = frozenset(f"aten::{name}" for name in ("argsort", "kthvalue", "mode", "msort", "sort", "topk"))
_PURE_NAMESPACES = frozenset({"annopipe", "aten", "prim", "prims"})
_PURE_HIGHER_ORDER = frozenset({"flex_attention", "flex_attention_backward", "triton_kernel_wrapper_functional"})
# Not among them: functions that change their argument (iadd, setitem), call others, or return their argument (pos).
_PURE_FUNCTIONS = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
        *(operator.neg, operator.abs, operator.inv, operator.lshift, operator.rshift),
        *(operator.and_, operator.or_, operator.xor, operator.not_, operator.truth, operator.is_, operator.is_not),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.index),
        *(operator.getitem, abs, bool, divmod, float, int, len, max, min, pow, round, sum),
    }
)
# Effects and aliases that the operators' schemas do not tell.
_EFFECTS = frozenset({"aten::_print", "aten::manual_seed", "prims::_make_token", "prims::_sink_tokens"})
_HIDDEN_WRITES = frozenset(
    f"aten::{name}"
    for name in (
        "_batch_norm_impl_index",
        "batch_norm",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
        "batch_norm_update_stats",
        "cudnn_batch_norm",
        "instance_norm",
        "miopen_batch_norm",
        "native_batch_norm",
        "set",
        "set_",
    )
)
_HIDDEN_VIEWS = frozenset(
    f"aten::{name}" for name in ("_unsafe_view", "lift", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")
)
_CHECKS = ("_assert", "_functional_assert", "_linalg_check_errors", "sym_constrain_range", "_functional_sym_constrain")
_GROUP_ARGUMENTS = ("group_name", "group")

Argument = tuple[int, str]  # position, name


@dataclasses.dataclass(frozen=True, slots=True)
class OpTraits:
    """What ordering has to know of one operation; all false means a pure computation.

    launch, wait: the halves of an asynchronous collective.  host_read: the host waits for a value of the device.
    random: draws from a generator.  fence: not understood, or known to have effects.
    check: yields nothing and may raise; it stays in a graph, but orders nothing.
    view: the result is a view.  shares: arguments whose storage the result may share without being written.
    writes: arguments that it writes to.
    """

    launch: bool = False
    wait: bool = False
    host_read: bool = False
    random: bool = False
    fence: bool = False
    check: bool = False
    view: bool = False
    shares: tuple[Argument, ...] = ()
    writes: tuple[Argument, ...] = ()


def traits(node: fx.Node) -> OpTraits:
    """The traits of a node. Calls of modules and methods are not understood, hence fences."""
    if node.op == "call_function":
        return _target_traits(node.target)
    return OpTraits(fence=node.op in ("call_module", "call_method"))


def has_effect(node: fx.Node) -> bool:
    """Whether the node has to stay in its graph even if nobody uses its result."""
    known = traits(node)
    return known.random or known.fence or known.check or bool(known.writes)


def sorts(node: fx.Node) -> bool:
    """Whether the operation decides an order, which equal values leave open: run again, it may decide another one."""
    target: Any = node.target
    return node.op == "call_function" and is_operator(target) and target._schema.name in _SORTS


@functools.cache
def _target_traits(target: Any) -> OpTraits:
    if is_operator(target):
        return _overload_traits(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return OpTraits(fence=target.name() not in _PURE_HIGHER_ORDER)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", "")
    symbolic = module.split(".")[0] == "torch" and name.lstrip("_").startswith("sym_")
    return OpTraits(fence=not (target in _PURE_FUNCTIONS or module == "math" or symbolic))


def _overload_traits(op: torch._ops.OpOverload) -> OpTraits:
    schema, name = op._schema, op._schema.name
    arguments = [(position, argument.name, argument.alias_info) for position, argument in enumerate(schema.arguments)]
    writes = tuple((position, own) for position, own, alias in arguments if alias is not None and alias.is_write)
    shares = tuple((position, own) for position, own, alias in arguments if alias is not None and not alias.is_write)
    launch = name in _LAUNCHES or name in _INPLACE_LAUNCHES
    wait = name in _WAITS
    dispatched = torch._C._dispatch_has_kernel(op.name())  # not so are operators of TorchScript alone
    known = launch or wait or (op.namespace in _PURE_NAMESPACES and dispatched)
    fence = not known or name in _EFFECTS or name in _HIDDEN_WRITES
    view = name in _HIDDEN_VIEWS or (not writes and any(returned.alias_info is not None for returned in schema.returns))
    if name in _HIDDEN_VIEWS or wait:
        shares = ((0, schema.arguments[0].name),)
    elif not (shares or writes) and (fence or not dispatched or _is_composite(op)):
        shares = tuple((position, own) for position, own, _ in arguments)  # they may return an argument as it is
    return OpTraits(
        launch=launch,
        wait=wait,
        host_read=any(tag in op.tags for tag in _HOST_TAGS) and name not in _NOT_ALWAYS_HOST,
        random=torch.Tag.nondeterministic_seeded in op.tags,
        fence=fence,
        check=name.partition("::")[2].startswith(_CHECKS),
        view=view,
        shares=shares,
        writes=writes,
    )


def _is_composite(op: torch._ops.OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """The nodes whose storage ``node`` writes to, per its operator's schema."""
    return [n for argument in traits(node).writes for n in _nodes_at(node, argument)]


def sharing_arguments(node: fx.Node) -> list[fx.Node]:
    """The nodes whose storage the result of ``node`` may share: a view's base, what is waited for, what is written."""
    known = traits(node)
    if node.op in ("call_module", "call_method") or (known.fence and not (known.shares or known.writes)):
        return list(node.all_input_nodes)
    if is_getitem(node) and not _yields_separate_tensors(node.all_input_nodes[0]):
        return node.all_input_nodes[:1]
    return [n for argument in (*known.shares, *known.writes) for n in _nodes_at(node, argument)]


def launch_of(wait: fx.Node) -> fx.Node | None:
    """The launch that a wait completes, or None: only a wait whose input is a launch waits for anything."""
    if not traits(wait).wait or not wait.all_input_nodes:
        return None
    source, _ = view_chain(wait.all_input_nodes[0])
    while is_getitem(source):
        source, _ = view_chain(source.all_input_nodes[0])
    return source if traits(source).launch else None


def group_name(launch: fx.Node) -> str:
    """The name of the process group that a launch runs on."""
    schema = launch.target._schema  # type: ignore[union-attr]
    for position, argument in enumerate(schema.arguments):
        if argument.name in _GROUP_ARGUMENTS:
            value = launch.args[position] if position < len(launch.args) else launch.kwargs[argument.name]
            return value if isinstance(value, str) else str(getattr(value, "group_name", value))
    return ""


def is_operator(target: Any) -> bool:
    """Whether a node's target is an operator with a schema, such as ``torch.ops.aten.add.Tensor``."""
    return isinstance(target, torch._ops.OpOverload)


def is_getitem(node: fx.Node) -> bool:
    """Whether the node picks one item of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem


def view_chain(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The node whose storage ``node`` shares through view operations (itself when it is no view).

    Also returns the other values, such as sizes, that making the view again takes.
    """
    others: list[fx.Node] = []
    while node.all_input_nodes:
        source = node.all_input_nodes[0]
        if traits(node).view:
            source = sharing_arguments(node)[0]
        elif not (is_getitem(node) and traits(source).view):
            break
        others += [n for n in node.all_input_nodes if n is not source]
        node = source
    return node, others


def _nodes_at(node: fx.Node, argument: Argument) -> list[fx.Node]:
    position, name = argument
    value = node.args[position] if position < len(node.args) else node.kwargs.get(name)
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, fx.Node)]


def _yields_separate_tensors(node: fx.Node) -> bool:
    """Whether ``node`` is an operation that makes several new tensors."""
    known = traits(node)
    return is_operator(node.target) and not (known.shares or known.writes or known.fence or known.launch)
