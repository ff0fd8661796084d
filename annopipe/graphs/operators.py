"""Find the operators that a user names, and check what their schemas allow them to be declared as.

Adapter: operators of users are recognised by private names of ``torch._ops``, ``torch._C`` and ``torch.library``.
"""

from typing import Any

import torch
from torch import fx

from annopipe.errors import GraphError

__all__ = [
    "OUR_NAMESPACES",
    "Operator",
    "check_computes",
    "check_launches",
    "check_waits",
    "draws_nothing",
    "find_operators",
    "is_composite",
    "reads_layout",
    "schema_arguments",
]

Operator = torch._ops.OpOverload
OUR_NAMESPACES = frozenset({"annopipe", "aten", "prim", "prims", "_c10d_functional", "_c10d_functional_autograd"})


def find_operators(op: Any) -> tuple[str, tuple[Operator, ...]]:
    """The name "namespace::name" of an operator, and its overloads.

    Raises:
        GraphError: it is no operator, or there is none of that name.

    >>> find_operators("aten::relu")[0], find_operators(torch.ops.aten.relu.default)[0]
    ('aten::relu', 'aten::relu')
    """
    if isinstance(op, torch.library.CustomOpDef):
        op = op._opoverload
    if isinstance(op, Operator):
        op = op.overloadpacket
    if isinstance(op, str):
        namespace, separator, name = op.partition("::")
        known = separator and namespace.isidentifier() and name.isidentifier()
        packet = getattr(getattr(torch.ops, namespace), name, None) if known else None
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            raise GraphError(f"there is no operator {op!r}: write 'namespace::name', and define the operator before")
        op = packet
    if not isinstance(op, torch._ops.OpOverloadPacket):
        raise GraphError(
            f"{op!r} is not an operator: pass torch.ops.namespace.name, what torch.library.custom_op returned, or "
            "'namespace::name'; a plain function becomes an operator with torch.library.custom_op"
        )
    operators = tuple(getattr(op, overload) for overload in op.overloads())
    return operators[0]._schema.name, operators


def schema_arguments(operator: Any) -> tuple[Any, ...]:
    """What an operator's schema says of each argument: ``name``, ``type``, ``default_value`` and more.

    >>> [argument.name for argument in schema_arguments(torch.ops.aten.relu.default)]
    ['self']
    """
    return tuple(operator._schema.arguments)


def is_composite(operator: Operator) -> bool:
    """Whether an operator is made of other operators, which are what a graph has."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")


def reads_layout(target: Any) -> bool:
    """Whether what a node calls may depend on how its arguments lie in memory; PyTorch's own do not, save for one."""
    if isinstance(target, Operator):
        return target.namespace not in OUR_NAMESPACES or "as_strided" in target._schema.name
    return isinstance(target, torch._ops.HigherOrderOperator)


def check_launches(operator: Operator) -> None:
    """Check that an operator can be the launch of a transfer.

    Raises:
        GraphError: it cannot.
    """
    _check_functional(operator)
    if not any("Tensor" in str(returned.type) for returned in operator._schema.returns):
        raise GraphError(f"{operator} returns no tensor that a wait could take: return what arrives, or a handle")


def check_waits(operator: Operator) -> None:
    """Check that an operator can be the wait of a transfer.

    Raises:
        GraphError: it cannot.
    """
    _check_functional(operator)
    if not any("Tensor" in str(argument.type) for argument in operator._schema.arguments):
        raise GraphError(f"{operator} takes no tensor, so nothing says which launch it waits for: pass it a result")


def check_computes(operator: Operator) -> None:
    """Check that an operator can be without effects.

    Raises:
        GraphError: it cannot.
    """
    _check_functional(operator)
    if not operator._schema.returns:
        raise GraphError(f"{operator} returns nothing, so it would do nothing if it were pure")


def _check_functional(operator: Operator) -> None:
    """Check that an operator is the user's own, that tracing shows it, and that it makes its results anew.

    Raises:
        GraphError: it is not, or does not.
    """
    schema = operator._schema
    if operator.namespace in OUR_NAMESPACES:
        raise GraphError(
            f"{operator} is PyTorch's or annopipe's own, and in annopipe's table (annopipe/graphs/ops.py) if it is "
            "understood: only other operators are declared"
        )
    if is_composite(operator):
        raise GraphError(
            f"{operator} is made of other operators, and graphs have those: declare them, or define it with "
            "torch.library.custom_op"
        )
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if written:
        raise GraphError(
            f"{operator} writes to its argument {', '.join(written)}: tracing would run it on a copy, which may be "
            "taken while a transfer fills the argument; wrap it in an operator that returns the tensor instead"
        )
    if any(value.alias_info is not None for value in (*schema.arguments, *schema.returns)):
        raise GraphError(f"{operator} says that it returns its argument or a view of it: have it return a new tensor")


def draws_nothing(node: fx.Node) -> bool:
    """Whether it would draw random numbers for dropout, and has none."""
    for position, argument in enumerate(schema_arguments(node.target)):
        if argument.name == "dropout_p":
            given = node.kwargs.get(argument.name, argument.default_value)
            return bool((node.args[position] if position < len(node.args) else given) == 0.0)
    return False
