"""Close the connections of a process group, so that whoever waits on it stops waiting: this rank and its peers.

gloo cannot abort. But an operation that misses its time limit closes every connection of the group, from any thread,
and whatever waits on them fails at once, here and on the other side. So one message that never comes is asked for.
"""

import contextlib
import re
from datetime import timedelta

import torch
import torch.distributed as dist

from annopipe.ordering.gathering import message_device

__all__ = ["close_connections", "reason_of", "was_closed"]

_TAG = 32_749  # that of no message
_AT_ONCE = timedelta(milliseconds=1)
_SOURCE_LINE = re.compile(r"^\[\S+:\d+\] ")
_CLOSED = (
    "connection closed",
    "connection reset",
    "broken pipe",
    "pair closure",
    "read error",
    "write error",
)


def close_connections(group: dist.ProcessGroup) -> None:
    """Make everything that waits, or ever will wait, on the group fail. The group is of no use afterwards."""
    if message_device(group).type != "cpu":
        group.abort()
        return
    own = dist.get_rank(group)
    for peer in range(dist.get_world_size(group)):
        if peer != own:
            with contextlib.suppress(RuntimeError):  # the one that is meant, or the connection was closed before
                never = dist.irecv(torch.empty(1), group=group, group_src=peer, tag=_TAG)
                if never is not None:
                    never.wait(_AT_ONCE)


def reason_of(error: BaseException) -> str:
    """The first sentence of an error of a process group, without the line of its source code.

    >>> reason_of(RuntimeError("[/gloo/pair.cc:5] Connection closed by peer [::1]:80. This is typically caused by ..."))
    'Connection closed by peer [::1]:80'
    """
    lines = str(error).splitlines() or [type(error).__name__]
    return _SOURCE_LINE.sub("", lines[0]).split(". ")[0]


def was_closed(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that somebody closed a connection: the reason is known elsewhere."""
    while error is not None:
        if any(text in str(error).lower() for text in _CLOSED):
            return True
        error = error.__cause__
    return False
