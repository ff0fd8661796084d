"""Operators that users declare: foreign asynchronous collectives, and custom operators without effects.

An operator that annopipe does not know is a fence, since it may do anything. Who knows better says so:

    ap.register_comm("deep::dispatch", wait="deep::wait", group="group")     # a launch and its wait
    ap.register_pure("my::fused_norm")                                       # computes, and does nothing else

Both return a ``Declared``; as a context manager, it takes the declaration back at the end of the block. What holds for
a graph is what is declared when it is traced: ``ap.trace`` notes it on the nodes (``annopipe.graphs.meta``), so
neither a later declaration nor ``ap.forget_operator`` changes a graph that exists.

Like the policies, declarations belong to the process, as the operators themselves do: this is the second and last
registry of the project. It is one object, its tables are replaced and never changed, and a lock guards the change.
"""

import dataclasses
import threading
import types
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from annopipe.errors import GraphError
from annopipe.graphs.operators import (
    Operator,
    check_computes,
    check_launches,
    check_waits,
    find_operators,
)
from annopipe.graphs.process_groups import find_group

__all__ = [
    "GROUP_ARGUMENTS",
    "WAIT_TENSOR",
    "Declaration",
    "Declared",
    "declared",
    "forget_operator",
    "register_comm",
    "register_pure",
]

WAIT_TENSOR = "_c10d_functional::wait_tensor"
GROUP_ARGUMENTS = ("group_name", "group")  # what the argument that holds the process group is called


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """What a user said of an operator.

    kind: launch, wait or pure.  wait: launches: the name of the operator that waits.
    group_argument: launches: the argument that holds the process group; or group: its name.
    """

    kind: str
    wait: str = ""
    group_argument: str = ""
    group: str = ""


class Declared:
    """A declaration that can be taken back: ``with ap.register_pure(op): ...``, or ``forget()``.

    Whoever declares the same again has a declaration of their own: it lasts until the end of the last block.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def forget(self) -> None:
        """Take the declaration back, whoever else made it; graphs that were traced meanwhile keep it."""
        _DECLARATIONS.remove(self.name)

    def __enter__(self) -> "Declared":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        _DECLARATIONS.leave(self.name)

    def __repr__(self) -> str:
        return f"Declared({self.name!r})"


class _Declarations:
    """Declarations by operator name, and the same by the operators that have the name now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: Mapping[str, tuple[Declaration, tuple[Operator, ...]]] = {}
        self._by_operator: Mapping[Operator, Declaration] = {}
        self._made: Mapping[str, int] = {}  # how often, by the name of what was declared

    def of(self, target: Any) -> Declaration | None:
        """The declaration of a node's target; cheap, for it is asked for every node."""
        return self._by_operator.get(target) if self._by_operator else None

    def add(self, declared_name: str, entries: Mapping[str, tuple[Declaration, tuple[Operator, ...]]]) -> None:
        """Add declarations, all or none; the same ones again take the operators that have the names now."""
        with self._lock:
            for name, (new, _) in entries.items():
                old = self._by_name.get(name)
                if old is not None and old[0] != new:
                    raise GraphError(
                        f"{name} is declared already, as {_told(old[0])}, and now as {_told(new)}: "
                        f"call ap.forget_operator({name!r}) first, or declare it once"
                    )
            self._replace({**self._by_name, **entries})
            self._made = {**self._made, declared_name: self._made.get(declared_name, 0) + 1}

    def leave(self, name: str) -> None:
        """Remove a declaration that was made once; of several, count one less."""
        with self._lock:
            if (made := self._made.get(name, 0)) > 1:
                self._made = {**self._made, name: made - 1}
                return
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a declaration, and that of its wait unless another launch has the same; unknown names are fine."""
        with self._lock:
            self._made = {key: made for key, made in self._made.items() if key != name}
            left = {key: entry for key, entry in self._by_name.items() if key != name}
            used = {declaration.wait for declaration, _ in left.values() if declaration.kind == "launch"}
            self._replace({key: entry for key, entry in left.items() if entry[0].kind != "wait" or key in used})

    def _replace(self, by_name: Mapping[str, tuple[Declaration, tuple[Operator, ...]]]) -> None:
        self._by_name = by_name
        self._by_operator = {op: declaration for declaration, ops in by_name.values() for op in ops}


_DECLARATIONS = _Declarations()


def declared(target: Any) -> Declaration | None:
    """What has been declared of a node's target, or None."""
    return _DECLARATIONS.of(target)


def register_comm(op: Any, *, wait: Any = None, group: str | dist.ProcessGroup | None = None) -> Declared:
    """Declare an operator that starts a transfer and returns at once, and the one that waits for it.

    The pair then is a launch and a wait like those of PyTorch's own collectives: policies put computation between
    them, and ``ap.costs.measure`` times the transfer. Declare it before ``ap.trace``.

    ``op`` returns tensors that are not to be read before ``wait`` has got one of them; several are fine (rows and a
    handle). ``wait`` takes any arguments, and returns what is ready, or nothing: then what the program reads behind it
    stays behind it. Neither writes to an argument: tracing would copy that argument while it is being filled. ``op``
    keeps what it sends alive until it is waited for, as PyTorch's collectives do.

    Args:
        op: an operator, ``torch.ops.deep.dispatch``, what ``torch.library.custom_op`` returned, or "deep::dispatch".
        wait: likewise; ``_c10d_functional.wait_tensor`` if left out.
        group: the name of the argument of ``op`` that holds the process group or its name; or a process group, or its
            name, if it is always the same; left out, the argument called "group_name" or "group".

    Returns:
        The declaration, for ``with`` and ``forget()``. Declaring the same again is fine.

    Raises:
        GraphError: not operators, or they do not fit together as above, or declared differently before.

    >>> import torch
    >>> @torch.library.custom_op("readme::start", mutates_args=())
    ... def start(x: torch.Tensor, group: str) -> torch.Tensor:
    ...     return x.clone()
    >>> with register_comm(start):
    ...     pass
    """
    name, operators = find_operators(op)
    wait_name, wait_operators = find_operators(WAIT_TENSOR if wait is None else wait)
    if wait_name == name:
        raise GraphError(f"{name} cannot wait for itself: give the operator that completes the transfer as wait=")
    for operator in operators:
        check_launches(operator)
    entries = {name: (_launch(operators, wait_name, group), operators)}
    if wait_name != WAIT_TENSOR:
        for operator in wait_operators:
            check_waits(operator)
        entries[wait_name] = (Declaration("wait", wait=wait_name), wait_operators)
    _DECLARATIONS.add(name, entries)
    return Declared(name)


def register_pure(op: Any) -> Declared:
    """Declare that an operator only computes its results from its arguments; it then moves like any computation.

    Args:
        op: an operator, ``torch.ops.my.norm``, what ``torch.library.custom_op`` returned, or "my::norm".

    Returns:
        The declaration, for ``with`` and ``forget()``. Declaring the same again is fine.

    Raises:
        GraphError: not an operator, or its schema says that it writes to an argument, returns one, or nothing.

    >>> import torch
    >>> @torch.library.custom_op("readme::twice", mutates_args=())
    ... def twice(x: torch.Tensor) -> torch.Tensor:
    ...     return x * 2
    >>> with register_pure(twice):
    ...     pass
    """
    name, operators = find_operators(op)
    for operator in operators:
        check_computes(operator)
    _DECLARATIONS.add(name, {name: (Declaration("pure"), operators)})
    return Declared(name)


def forget_operator(op: Any) -> None:
    """Take back what ``register_comm`` or ``register_pure`` declared; nothing happens if nothing is declared.

    Args:
        op: as for these.
    """
    _DECLARATIONS.remove(op if isinstance(op, str) else find_operators(op)[0])


def _launch(operators: tuple[Operator, ...], wait: str, group: str | dist.ProcessGroup | None) -> Declaration:
    """The declaration of a launch.

    Raises:
        GraphError: its process group cannot be told.
    """
    name = operators[0]._schema.name
    arguments = [{argument.name for argument in operator._schema.arguments} for operator in operators]
    common = sorted(set.intersection(*arguments))
    if group is None:
        found = next((argument for argument in GROUP_ARGUMENTS if argument in common), None)
        if found is None:
            raise GraphError(
                f"{name}: which process group does it use? Pass group=, the name of one of its arguments "
                f"({', '.join(common)}) or a process group"
            )
        return Declaration("launch", wait, group_argument=found)
    if isinstance(group, dist.ProcessGroup):
        return Declaration("launch", wait, group=str(group.group_name))
    if group in common:
        return Declaration("launch", wait, group_argument=group)
    if not isinstance(group, str) or find_group(group) is None:
        raise GraphError(
            f"{name}: group={group!r} is neither an argument of it ({', '.join(common)}), nor a process group or the "
            "name of one"
        )
    return Declaration("launch", wait, group=group)


def _told(declaration: Declaration) -> str:
    if declaration.kind != "launch":
        return {"wait": "the wait of a launch", "pure": "pure"}[declaration.kind]
    group = declaration.group_argument and f"its argument {declaration.group_argument}"
    return f"a launch with wait {declaration.wait} and group {group or declaration.group}"
