"""What an operation means for ordering: whether it launches, waits, reads on the host, draws random numbers or mutates.

This is the one table that says which operations are understood. What is not in it, nor declared by the user
(``annopipe.graphs.declared_ops``), is a fence: nothing moves across it.

Adapter: the kinds of operators that a node can call are private names of ``torch._ops``.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.declared_ops import GROUP_ARGUMENTS, WAIT_TENSOR, Declaration, declared
from annopipe.graphs.operators import OUR_NAMESPACES, draws_nothing, is_composite

__all__ = [
    "OpTraits",
    "group_name",
    "has_effect",
    "is_declared",
    "is_getitem",
    "is_operator",
    "launch_of",
    "note_declarations",
    "set_group_name",
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
_WAITS = frozenset({WAIT_TENSOR})
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

_UNDECLARED = Declaration("")

Argument = tuple[int, str]  # position, name


@dataclasses.dataclass(frozen=True, slots=True)
class OpTraits:
    """What ordering has to know of one operation; all false means a pure computation.

    launch, wait: the halves of an asynchronous collective.  host_read: the host waits for a value of the device.
    random: draws from a generator.  fence: not understood, or known to have effects.
    check: yields nothing and may raise; it stays in a graph, but orders nothing.
    view: the result is a view.  shares: arguments whose storage the result may share without being written.
    writes: arguments that it writes to.
    pairing: of a launch and of a wait: the name of the operator that waits.
    stays: it has to stay in its graph although it yields nothing and may move.
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
    pairing: str = ""
    stays: bool = False


def traits(node: fx.Node) -> OpTraits:
    """The traits of a node. Calls of modules and methods are not understood, hence fences.

    Attention without dropout is not random, although its operators could draw numbers.
    """
    if meta.marked_computation(node):
        return OpTraits()
    if node.op == "call_function":
        noted = meta.declaration(node)
        known = _target_traits(node.target, declared(node.target) if noted is None else noted)
        return dataclasses.replace(known, random=False) if known.random and draws_nothing(node) else known
    return OpTraits(fence=node.op in ("call_module", "call_method"))


def has_effect(node: fx.Node) -> bool:
    """Whether the node has to stay in its graph even if nobody uses its result."""
    known = traits(node)
    return known.random or known.fence or known.check or known.stays or bool(known.writes)


def note_declarations(nodes: Iterable[fx.Node]) -> None:
    """Note on nodes what is declared of their operators now; what is declared later does not change them.

    Raises:
        GraphError: one wait for two launches.
    """
    for node in nodes:
        if node.op != "call_function" or not is_operator(node.target) or meta.declaration(node) is not None:
            continue
        if node.target.namespace not in OUR_NAMESPACES:  # type: ignore[union-attr]
            meta.set_declaration(node, declared(node.target) or _UNDECLARED)
        if len(found := _launches_of(node)) > 1:
            raise GraphError(
                f"{node.target} waits for {' and '.join(str(launch.target) for launch in found)} at once: no policy "
                "could tell when; call it once for each"
            )


def is_declared(node: fx.Node) -> bool:
    """Whether the user has said what the node's operator does."""
    return bool(_declaration(node).kind)


def _declaration(node: fx.Node) -> Declaration:
    return meta.declaration(node) or declared(node.target) or _UNDECLARED


def sorts(node: fx.Node) -> bool:
    """Whether the operation decides an order, which equal values leave open: run again, it may decide another one."""
    target: Any = node.target
    return node.op == "call_function" and is_operator(target) and target._schema.name in _SORTS


@functools.cache
def _target_traits(target: Any, declaration: Declaration | None) -> OpTraits:
    if declaration is not None and declaration.kind:
        return _declared_traits(target, declaration)
    if is_operator(target):
        return _overload_traits(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return OpTraits(fence=target.name() not in _PURE_HIGHER_ORDER)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", "")
    symbolic = module.split(".")[0] == "torch" and name.lstrip("_").startswith("sym_")
    return OpTraits(fence=not (target in _PURE_FUNCTIONS or module == "math" or symbolic))


def _declared_traits(op: torch._ops.OpOverload, declaration: Declaration) -> OpTraits:
    """Traits of an operator whose schema was checked when it was declared: it makes its results anew."""
    arguments = tuple((position, argument.name) for position, argument in enumerate(op._schema.arguments))
    wait = declaration.kind == "wait"
    return OpTraits(
        launch=declaration.kind == "launch",
        wait=wait,
        host_read=any(tag in op.tags for tag in _HOST_TAGS),
        random=torch.Tag.nondeterministic_seeded in op.tags,
        shares=arguments if wait else (),  # what is ready may be the memory that the launch returned
        pairing=declaration.wait,
        stays=wait and not op._schema.returns,
    )


def _overload_traits(op: torch._ops.OpOverload) -> OpTraits:
    schema, name = op._schema, op._schema.name
    arguments = [(position, argument.name, argument.alias_info) for position, argument in enumerate(schema.arguments)]
    writes = tuple((position, own) for position, own, alias in arguments if alias is not None and alias.is_write)
    shares = tuple((position, own) for position, own, alias in arguments if alias is not None and not alias.is_write)
    launch = name in _LAUNCHES or name in _INPLACE_LAUNCHES
    wait = name in _WAITS
    dispatched = torch._C._dispatch_has_kernel(op.name())  # not so are operators of TorchScript alone
    composite = dispatched and is_composite(op)
    known = launch or wait or (op.namespace in _PURE_NAMESPACES and dispatched)
    fence = not known or name in _EFFECTS or name in _HIDDEN_WRITES
    view = name in _HIDDEN_VIEWS or (not writes and any(returned.alias_info is not None for returned in schema.returns))
    if name in _HIDDEN_VIEWS or wait:
        shares = ((0, schema.arguments[0].name),)
    elif not (shares or writes) and (fence or not dispatched or composite):
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
        pairing=WAIT_TENSOR if launch or wait else "",
    )


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
    """The launch that a wait completes, or None: only a wait that takes a result of a launch waits for anything."""
    return next(iter(_launches_of(wait)), None)


def _launches_of(wait: fx.Node) -> list[fx.Node]:
    known = traits(wait)
    found: list[fx.Node] = []
    for source in wait.all_input_nodes if known.wait else ():
        root, _ = view_chain(source)
        while is_getitem(root):
            root, _ = view_chain(root.all_input_nodes[0])
        launch = traits(root)
        if launch.launch and launch.pairing == known.pairing and root not in found:
            found.append(root)
    return found


def group_name(launch: fx.Node) -> str:
    """The name of the process group that a launch runs on."""
    fixed = _declaration(launch).group
    for position, argument in () if fixed else _group_arguments(launch):
        given = launch.kwargs.get(argument.name, argument.default_value)
        value = launch.args[position] if position < len(launch.args) else given
        return value if isinstance(value, str) else str(getattr(value, "group_name", value))
    return fixed


def set_group_name(launch: fx.Node, name: str) -> None:
    """Let a launch run on another process group.

    Raises:
        GraphError: it was declared to run always on one group.
    """
    if fixed := _declaration(launch).group:
        raise GraphError(f"{launch.target} was declared to run on group {fixed}, so it cannot run on {name}")
    for position, argument in _group_arguments(launch):
        if position < len(launch.args):
            launch.update_arg(position, name)
        else:
            launch.update_kwarg(argument.name, name)


def _group_arguments(launch: fx.Node) -> list[tuple[int, Any]]:
    """The arguments, each with its position, that hold the group of a launch."""
    said = _declaration(launch).group_argument
    names = (said,) if said else GROUP_ARGUMENTS
    schema = launch.target._schema  # type: ignore[union-attr]
    return [(position, argument) for position, argument in enumerate(schema.arguments) if argument.name in names]


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
