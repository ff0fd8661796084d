"""Adapter: from the name of a process group, as graphs carry it, to the group (private in torch.distributed)."""

import contextlib
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    FakeProcessGroup,
    _register_process_group,
    _unregister_process_group,
)
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group

__all__ = ["absent_group", "find_group", "group_by_name", "host_timeout", "is_distributed"]

_NUMBERS = itertools.count()


def group_by_name(name: str) -> dist.ProcessGroup:
    """The process group that functional collectives know by ``name``; Dynamo takes it as a constant."""
    return cast(dist.ProcessGroup, _looked_up(name))


def find_group(name: str) -> dist.ProcessGroup | None:
    """The process group of that name; None if this process has none."""
    if not dist.is_available():
        return None
    try:
        return group_by_name(name)
    except (RuntimeError, ValueError):  # how torch says that there is none
        return None


@contextlib.contextmanager
def absent_group(ranks: int) -> Iterator[dist.ProcessGroup]:
    """A process group of so many ranks that are not there, of which this process is the first: enough to trace.

    It has a name of its own, and the default process group is what it was: there may be none.

    >>> with absent_group(64) as group:
    ...     group.size(), group_by_name(group.group_name) is group, dist.is_initialized()
    (64, True, False)
    """
    group = dist.ProcessGroup(0, ranks)  # type: ignore[call-arg]
    backend = FakeProcessGroup._create_internal(0, ranks, FakeProcessGroup.Options())  # type: ignore[call-arg]
    for device in ("cpu", "meta"):
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
    name = GroupName(f"annopipe absent {next(_NUMBERS)}")
    group._set_group_name(name)
    _register_process_group(name, group)
    try:
        yield group
    finally:
        _unregister_process_group(name)


def host_timeout(group: dist.ProcessGroup) -> timedelta | None:
    """How long the host waits for an operation of the group; None if it has no backend for which the host waits."""
    devices = [part.partition(":")[0] for part in dist.get_backend_config(group).split(",")]
    if "cpu" not in devices:
        return None
    return group._get_backend(torch.device("cpu")).options._timeout


@torch.compiler.assume_constant_result
def _looked_up(name: str) -> dist.ProcessGroup:
    return _resolve_process_group(name)  # type: ignore[arg-type]


def is_distributed() -> bool:
    """Whether torch.distributed is there and initialised."""
    return dist.is_available() and dist.is_initialized()
