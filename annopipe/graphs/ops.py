"""What an operation means for ordering: whether it launches, waits, reads from the device, draws random numbers or mutates.

This is the one table that says which operations are understood. What is not in it is a fence: nothing moves across it.
"""

import dataclasses
import functools
import operator
from typing import Any

import torch
from torch import fx

__all__ = ["OpTraits", "group_name", "is_getitem", "launch_of", "traits", "view_chain", "written_arguments"]

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
_HOST_READS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::item",
        "aten::masked_select",
        "aten::nonzero",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::equal",
        "aten::is_nonzero",
    }
)
_PURE_NAMESPACES = frozenset({"annopipe", "aten", "prim", "prims"})
_PURE_HIGHER_ORDER = frozenset({"flex_attention", "flex_attention_backward", "triton_kernel_wrapper_functional"})
_PURE_MODULES = frozenset({"_operator", "builtins", "math", "operator"})
_EFFECTS = frozenset({"aten::_print", "aten::_assert_async", "aten::manual_seed"})
_GROUP_ARGUMENTS = ("group_name", "group")


@dataclasses.dataclass(frozen=True, slots=True)
class OpTraits:
    """What ordering has to know of one operation; all false means a pure computation."""

    launch: bool = False
    wait: bool = False
    host_read: bool = False
    random: bool = False
    fence: bool = False
    view: bool = False
    writes: tuple[int | str, ...] = ()  # positions and keywords of the arguments that it writes to


@functools.lru_cache(maxsize=None)
def _target_traits(target: Any) -> OpTraits:
    if isinstance(target, torch._ops.OpOverload):
        return _overload_traits(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return OpTraits(fence=target.name() not in _PURE_HIGHER_ORDER)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", "")
    pure = module in _PURE_MODULES or (module.split(".")[0] == "torch" and name.lstrip("_").startswith("sym_"))
    return OpTraits(fence=not pure)


def _overload_traits(op: torch._ops.OpOverload) -> OpTraits:
    name = op._schema.name
    arguments = op._schema.arguments
    writes = tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    launch = name in _LAUNCHES or name in _INPLACE_LAUNCHES
    wait = name in _WAITS
    known = launch or wait or op.namespace in _PURE_NAMESPACES
    aliased = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
    return OpTraits(
        launch=launch,
        wait=wait,
        host_read=name in _HOST_READS,
        random=torch.Tag.nondeterministic_seeded in op.tags,
        fence=not known or name in _EFFECTS,
        view=aliased and not writes,
        writes=writes,
    )


def traits(node: fx.Node) -> OpTraits:
    """The traits of a node. Calls of modules and methods are not understood, hence fences."""
    if node.op == "call_function":
        return _target_traits(node.target)
    return OpTraits(fence=node.op in ("call_module", "call_method"))


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """The nodes whose storage ``node`` writes to, per its operator's schema."""
    written: list[fx.Node] = []
    for key in traits(node).writes:
        if isinstance(key, int):
            value = node.args[key] if key < len(node.args) else None
        else:
            value = node.kwargs.get(key)
        values = value if isinstance(value, (list, tuple)) else [value]
        written += [v for v in values if isinstance(v, fx.Node)]
    return written


def launch_of(wait: fx.Node) -> fx.Node | None:
    """The launch that a wait completes, or None: only a wait whose input is a launch waits for anything."""
    if not traits(wait).wait or not wait.all_input_nodes:
        return None
    source = wait.all_input_nodes[0]
    while is_getitem(source):
        source = source.all_input_nodes[0]
    return source if traits(source).launch else None


def group_name(launch: fx.Node) -> str:
    """The name of the process group that a launch runs on."""
    schema = launch.target._schema  # type: ignore[union-attr]
    for position, argument in enumerate(schema.arguments):
        if argument.name in _GROUP_ARGUMENTS:
            value = launch.args[position] if position < len(launch.args) else launch.kwargs[argument.name]
            return value if isinstance(value, str) else str(getattr(value, "group_name", value))
    return ""


def is_getitem(node: fx.Node) -> bool:
    """Whether the node picks one item of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem


def view_chain(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The node whose storage ``node`` shares through view operations (itself when it is no view), and the other values,
    such as sizes, that making the view again takes."""
    others: list[fx.Node] = []
    while node.all_input_nodes:
        source, *rest = node.all_input_nodes
        if not (traits(node).view or (is_getitem(node) and traits(source).view)):
            break
        others += rest
        node = source
    return node, others
