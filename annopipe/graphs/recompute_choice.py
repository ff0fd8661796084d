"""What the caller of ``ap.trace`` wants computed again in the backward, and the marks that say so on a joint graph.

    None                     what autograd saves is saved
    "attention"              operations in regions whose path has that component; "moe/experts": these, in that order
    ["attention", "mlp"]     several
    "all"                    all operations
    0.5                      a memory budget, PyTorch's ``activation_memory_budget``: from 0, nothing but inputs, to 1,
                             what PyTorch's partitioner saves for the least time

needs       a joint graph with regions; operations of checkpoints have their marks already, and keep them.
does        marks operations in groups, which ``annopipe.graphs.recomputation`` reads.
guarantees  a group is one layer's part of a region: what it hands on to other operations of the forward is saved if
            the backward needs it, all else of it is not. A layer is the outermost module with a number and modules
            inside, "layers.3".
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import TypeAlias

from torch import fx

from annopipe.annotate import check_name
from annopipe.errors import CaptureError
from annopipe.graphs import meta
from annopipe.graphs.min_cut import within_budget
from annopipe.graphs.region_paths import ends
from annopipe.graphs.stage_graph import StageGraph, body

__all__ = ["ALL", "Recompute", "RecomputeChoice", "mark_choice", "matching", "recompute_choice", "region_paths"]

ALL = "all"
_LAYER = re.compile(r"(.*?\.)??\d+(?=\.|$)")


@dataclasses.dataclass(frozen=True)
class RecomputeChoice:
    """A choice that was checked.

    regions: parts of region paths; everything: all operations; budget: a share, or None.
    absent: whether regions may be absent from a graph, as experts are from a dense stage.
    """

    regions: tuple[str, ...] = ()
    everything: bool = False
    budget: float | None = None
    absent: bool = False

    def __str__(self) -> str:
        if self.budget is not None:
            return f"a memory budget of {self.budget:g}"
        return ALL if self.everything else ", ".join(self.regions) or "nothing"


Recompute: TypeAlias = str | float | Iterable[str] | RecomputeChoice | None


def recompute_choice(given: Recompute) -> RecomputeChoice:
    """The choice that an argument ``recompute`` stands for.

    Raises:
        CaptureError: it is none.

    >>> str(recompute_choice("all")), str(recompute_choice(["attention", "mlp"])), str(recompute_choice(0.5))
    ('all', 'attention, mlp', 'a memory budget of 0.5')
    """
    if given is None:
        return RecomputeChoice()
    if isinstance(given, RecomputeChoice):
        return given
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        if not 0 <= given <= 1:
            raise CaptureError(
                f"recompute={given!r}: a memory budget is a share, from 0 (save inputs only) to 1 (save what makes the "
                "backward fastest)"
            )
        return RecomputeChoice(budget=float(given))
    if isinstance(given, str):
        return RecomputeChoice(everything=True) if given == ALL else RecomputeChoice(_checked([given]))
    if isinstance(given, Iterable) and not isinstance(given, (bytes, dict)):
        return RecomputeChoice(_checked(list(given)))
    raise CaptureError(
        f'recompute={given!r}: give the name of a region, a list of names, "all", or a memory budget from 0 to 1'
    )


def _checked(names: list[str]) -> tuple[str, ...]:
    for name in names:
        check_name(name)
    return tuple(names)


def region_paths(graph: StageGraph) -> tuple[str, ...]:
    """The paths of the regions in which a forward runs, in program order; of a joint graph, too."""
    return tuple(dict.fromkeys(path for node in _forward(graph) if (path := meta.tag_region(node))))


def matching(paths: Iterable[str], name: str) -> list[str]:
    """Those paths that have the name's components in a row.

    >>> matching(["a/moe/experts", "a/moe", "mlp"], "moe"), matching(["a/moe/experts", "moe"], "moe/experts")
    (['a/moe/experts', 'a/moe'], ['a/moe/experts'])
    """
    return [path for path in paths if ends(path, name)]


def mark_choice(joint: StageGraph, choice: RecomputeChoice) -> None:
    """Mark the operations that are chosen, in place.

    Raises:
        CaptureError: a region that forward does not have.
    """
    nodes = [node for node in _forward(joint) if meta.group(node) is None]
    first = 1 + max((group for node in _forward(joint) if (group := meta.group(node)) is not None), default=-1)
    if choice.budget is not None:
        again = within_budget(joint, choice.budget)
        for node in nodes:
            meta.mark_recompute(node, first, again=node in again)
        return
    groups: dict[tuple[str, ...], int] = {}
    wanted = [(name, frozenset(_found(joint, name, absent=choice.absent))) for name in choice.regions]
    layer_of = _layers(meta.module_path(node) for node in nodes)
    for node in nodes:
        path = meta.tag_region(node)
        part = next((_up_to(path, name) for name, paths in wanted if path in paths), None)
        if choice.everything or part is not None:
            group = groups.setdefault((part or "", layer_of.get(meta.module_path(node), "")), first + len(groups))
            meta.mark_recompute(node, group, again=True)


def _forward(joint: StageGraph) -> list[fx.Node]:
    return [node for node in body(joint.graph) if node.op == "call_function" and meta.is_traced_in_forward(node)]


def _found(joint: StageGraph, name: str, *, absent: bool) -> list[str]:
    paths = region_paths(joint)
    found = matching(paths, name)
    if not found and not absent:
        shown = ", ".join(paths[:20]) + (", ..." if len(paths) > 20 else "")
        have = f"it has {shown}" if paths else "it has none: tag the forward with ap.region, or use recompute='all'"
        raise CaptureError(f"recompute: forward runs in no region {name!r}; {have}")
    return found


def _up_to(path: str, name: str) -> str:
    """The path to the end of the name in it: the instance of the region that a node is in."""
    return "/".join(path.split("/")[: ends(path, name)[0]])


def _layers(paths: Iterable[str]) -> dict[str, str]:
    """The layer of each module path that is in one."""
    found = {path: match[0] for path in dict.fromkeys(paths) if (match := _LAYER.match(path))}
    with_parts = {layer for path, layer in found.items() if layer != path}
    return {path: layer for path, layer in found.items() if layer in with_parts}
