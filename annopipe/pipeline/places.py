"""Where an error happened: the action in words, and the region and the collective of the graph's node."""

import linecache
import re
import traceback
from types import TracebackType

import torch.distributed as dist
from torch import fx

from annopipe.errors import PipelineError
from annopipe.graphs import meta
from annopipe.graphs.ops import group_name, launch_of, traits
from annopipe.graphs.process_groups import find_group
from annopipe.pipeline.ranks.closing import reason_of, was_closed
from annopipe.scheduling.actions import Action

__all__ = ["InAction", "node_of", "place_of"]

_NAME = re.compile(r"\s*(\w+)")
_NOTES = "__notes__"  # Python 3.11 and later show them


class InAction:
    """What happens inside, if it is an error, becomes a PipelineError that says where.

    Anything that a user's operation can raise counts; what is no ``Exception``, such as KeyboardInterrupt, passes, with
    a note of the place.
    """

    def __init__(self, action: Action) -> None:
        self._action = action

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        place = f"in {_in_words(self._action)}{_in_graph(node_of(trace))}: "
        if not isinstance(error, Exception):
            vars(error).setdefault(_NOTES, []).append(place)
            return
        raise PipelineError(place + _said(error)) from error


def place_of(error: BaseException) -> str:
    """Where an error passed an action that it was not made a PipelineError by, as text to put before it; or ""."""
    return "".join(vars(error).get(_NOTES, []))


def _said(error: Exception) -> str:
    if isinstance(error, PipelineError):
        return str(error)
    return f"{type(error).__name__}: {reason_of(error) if was_closed(error) else error}"


def node_of(trace: TracebackType | None) -> fx.Node | None:
    """The node of a graph that was running, found by the line of the generated code that the traceback goes through."""
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        module = frame.f_locals.get("self")
        if frame.f_code.co_name == "forward" and isinstance(module, fx.GraphModule):
            found = _NAME.match(linecache.getline(frame.f_code.co_filename, line))
            name = found.group(1) if found else ""
            return next((node for node in module.graph.nodes if node.name == name), None)
    return None


def _in_words(action: Action) -> str:
    """The action, and what it does.

    >>> _in_words(Action("SEND_F", 0, 3))
    '0SEND_F3 (stage 0, microbatch 3)'
    """
    parts = action.singles
    of = [
        f"stage {part.stage}"
        + ("" if part.microbatch is None else f", microbatch {part.microbatch}")
        + (f" in {part.nano_batches} nano-batches" if part.nano_batches > 1 else "")
        for part in parts
    ]
    return f"{action} ({'; '.join(of)})"


def _in_graph(node: fx.Node | None) -> str:
    if node is None:
        return ""
    place = meta.placement(node)
    region, lane = (place.region, place.lane) if place is not None else (meta.tag_region(node), meta.tag_lane(node))
    launch = node if traits(node).launch else launch_of(node)
    group = find_group(group_name(launch)) if launch is not None else None
    waits = f", which waited for ranks {dist.get_process_group_ranks(group)} of all" if group is not None else ""
    return (f", region {region}" if region else "") + (f", lane {lane}" if lane else "") + f", at {node.name}{waits}"
