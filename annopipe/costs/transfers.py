"""What a launch node transfers: which collective, over how many ranks, how many bytes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import fx

from annopipe.costs.collectives import Collective
from annopipe.costs.sizes import Sizes
from annopipe.errors import CostError
from annopipe.graphs import meta
from annopipe.graphs.operators import schema_arguments
from annopipe.graphs.ops import group_name
from annopipe.graphs.process_groups import find_group
from annopipe.pytrees import tree_leaves

__all__ = ["Groups", "Message", "message"]

_KINDS: tuple[tuple[str, Collective], ...] = (
    ("all_gather_into_tensor", "all_gather"),
    ("reduce_scatter_tensor", "reduce_scatter"),
    ("all_reduce", "all_reduce"),
    ("broadcast", "broadcast"),
    ("all_to_all_single", "all_to_all"),
    ("exchange", "all_to_all"),
)

_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "annopipe"})


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One transfer; elements are those of a rank's whole message."""

    kind: Collective
    group: str
    ranks: int
    elements: int
    element_bytes: int
    is_floating: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Groups:
    """Sizes of process groups: given ones for those that torch.distributed does not know here.

    ranks, nodes: one number for all groups, or numbers by group name.
    """

    ranks: int | Mapping[str, int] | None = None
    nodes: int | Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        for what, table in (("ranks", self.ranks), ("nodes", self.nodes)):
            for number in table.values() if isinstance(table, Mapping) else () if table is None else (table,):
                if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                    raise CostError(f"{what}={table!r}: give whole numbers, 1 or more")

    def size(self, launch: fx.Node) -> int:
        """How many ranks take part in a launch: the graph says so, or torch.distributed, or the user.

        Raises:
            CostError: none of them does, or the user says something else than the graph or torch.distributed.
        """
        name = group_name(launch)
        given = self.ranks.get(name) if isinstance(self.ranks, Mapping) else self.ranks
        known = _size_in_graph(launch) or _size_here(name)
        if known is None and given is None:
            raise CostError(
                f"{launch.name} runs on process group {name!r}, which torch.distributed does not know here: pass its "
                f'size, ranks={{"{name}": 64}}, or ranks=64 for all such groups'
            )
        if isinstance(self.ranks, Mapping) and known is not None and given not in (None, known):
            raise CostError(
                f"{launch.name}: ranks says that group {name!r} has {given} ranks, but the graph was traced with "
                f"{known}: trace again with a group of that size (a fake process group will do)"
            )
        return known or given  # type: ignore[return-value]

    def spread(self, name: str) -> int | None:
        """Over how many nodes a group is said to lie, None for as few as possible."""
        return self.nodes.get(name) if isinstance(self.nodes, Mapping) else self.nodes


def message(launch: fx.Node, groups: Groups, sizes: Sizes, others: Mapping[str, Collective] | None = None) -> Message:
    """What a launch transfers.

    Args:
        others: what operators that PyTorch does not have are like, by their names.

    Raises:
        CostError: the collective is not one of those that roofline knows, or sizes are missing.
    """
    kind = _kind(launch, others or {})
    read = _tensors([meta.value(node) for node in launch.all_input_nodes[: _inputs(launch)]])
    made = _tensors(meta.value(launch))
    counted = {"all_gather": [made], "all_to_all": [read, made]}.get(kind, [read])
    elements = max(sum(sizes.elements(tensor, launch) for tensor in tensors) for tensors in counted)
    dtype = (read or made)[0].dtype
    name = group_name(launch)
    return Message(kind, name, groups.size(launch), elements, dtype.itemsize, dtype.is_floating_point)


def _kind(launch: fx.Node, others: Mapping[str, Collective]) -> Collective:
    operator, operation = str(launch.target.name()).partition(".")[0], _operation(launch)  # type: ignore[union-attr]
    kind = others.get(operator)
    if kind is None and operator.partition("::")[0] in _NAMESPACES:
        kind = next((kind for start, kind in _KINDS if operation.startswith(start)), None)
    if kind not in get_args(Collective):
        said = "" if kind is None else f", nor what {kind!r} is"
        raise CostError(
            f"{launch.name}: roofline does not know what {operator} transfers{said}: "
            f'pass collectives={{"{operator}": ...}} with one of {", ".join(get_args(Collective))}'
        )
    return kind  # type: ignore[return-value]


def _operation(launch: fx.Node) -> str:
    return str(launch.target.name()).partition("::")[2].partition(".")[0]  # type: ignore[union-attr]


def _inputs(launch: fx.Node) -> int:
    """How many of the launch's arguments are tensors to send: one, or all those of a list."""
    first = launch.args[0]
    return len(first) if isinstance(first, (list, tuple)) else 1


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _size_in_graph(launch: fx.Node) -> int | None:
    """The group's size where an argument tells it: the number of per-peer sizes, or a ``group_size``."""
    if str(launch.target.name()) == "annopipe::exchange":  # type: ignore[union-attr]
        counts = meta.value(launch.args[1])  # type: ignore[arg-type]
        return int(counts.shape[0])
    for argument, value in zip(schema_arguments(launch.target), launch.args, strict=False):
        if argument.name == "group_size" and isinstance(value, int):
            return value
        if argument.name == "output_split_sizes" and isinstance(value, (list, tuple)) and value:
            return len(value)
    return None


def _size_here(name: str) -> int | None:
    group = find_group(name)
    return None if group is None else group.size()
