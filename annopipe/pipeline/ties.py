"""Which parameters of stages are one: found where all stages are, noted on the stages, and those of a second copy."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from annopipe.scheduling.placement import Placement

__all__ = ["note_ties", "noted_ties", "tied_parameters", "with_copies"]

_TIES = "_annopipe_ties"


def tied_parameters(stages: Sequence[nn.Module]) -> dict[str, str]:
    """Which parameters of stages are one tensor: each further place, with the first; for ``Pipeline(tied=...)``.

    Call it where all stages are there, before the stages of other ranks are dropped.

    >>> first, last = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> last.weight = first.weight
    >>> tied_parameters([first, last])
    {'1.weight': '0.weight'}
    """
    first: dict[nn.Parameter, tuple[int, str]] = {}
    found: dict[str, str] = {}
    for index, module in enumerate(stages):
        for name, parameter in module.named_parameters():
            stage, source = first.setdefault(parameter, (index, name))
            if stage != index:
                found[f"{index}.{name}"] = f"{stage}.{source}"
    return found


def note_ties(stages: Sequence[nn.Module]) -> None:
    """Have stages remember which parameters they share, for when each is on a rank of its own."""
    ties = tied_parameters(stages)
    for stage in stages:
        _notes(stage)[_TIES] = ties


def noted_ties(modules: Iterable[nn.Module]) -> dict[str, str]:
    """What ``note_ties`` has noted on any of the stages."""
    return next((ties for module in modules if (ties := _notes(module).get(_TIES))), {})


def _notes(module: nn.Module) -> dict[str, Any]:
    """Where a note on a module stays, also on its copies."""
    return module.meta if isinstance(module, fx.GraphModule) else module.__dict__


def with_copies(tied: Mapping[str, str], modules: Mapping[int, nn.Module], placement: Placement) -> dict[str, str]:
    """The tied parameters, and those that copies of a stage have in common.

    Args:
        tied: between stages of one copy.
        modules: of this rank: what other ranks hold alone is theirs to tie.
        placement: which stages are copies.

    >>> from annopipe.scheduling import placement
    >>> with_copies({"1.weight": "0.weight"}, {0: nn.Linear(1, 1, bias=False)}, placement.bidirectional(2))
    {'1.weight': '0.weight', '2.weight': '0.weight', '3.weight': '1.weight'}
    """
    copies: dict[str, list[int]] = {}
    for index, first in enumerate(placement.weights_of):
        copies.setdefault(str(first), []).append(index)
    own = ((placement.weights_of[index], module) for index, module in modules.items())
    names = {f"{first}.{name}" for first, module in own for name, _ in module.named_parameters()}
    names |= {name for pair in tied.items() for name in pair}
    found = dict(tied)
    for place in sorted(names):
        stage, _, name = place.partition(".")
        found |= {f"{other}.{name}": place for other in copies.get(stage, ()) if str(other) != stage}
    return found
