"""Which arguments of a step a stage takes, by name."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from torch import nn

from annopipe.graphs.arguments import TARGET
from annopipe.pipeline.ranks.peers import AgreedError

__all__ = ["accepted", "check_names", "names_taken"]


def names_taken(module: nn.Module, handed: int) -> frozenset[str] | None:
    """What the module's forward can be given in a step, by name; None where that is any name.

    Args:
        module: of a stage.
        handed: how many arguments the stage gets from the stages before, in the place of its first ones.

    >>> sorted(names_taken(nn.Bilinear(1, 1, 1), handed=1))
    ['input2']
    """
    parameters = inspect.signature(module.forward).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    filled = _filled(parameters, handed)
    return frozenset(name for name in parameters if name not in filled)


def accepted(module: nn.Module, kwargs: Mapping[str, Any], handed: int) -> dict[str, Any]:
    """Those keyword arguments that the module's forward has a name for, and that are not handed to it.

    Args:
        module: of a stage.
        kwargs: of a step.
        handed: how many arguments the stage gets from the stages before.

    >>> accepted(nn.Bilinear(1, 1, 1), {"input1": 1, "input2": 2, "mask": 3}, handed=1)
    {'input2': 2}
    """
    if not kwargs:
        return {}
    names = names_taken(module, handed)
    filled = _filled(inspect.signature(module.forward).parameters, handed) if names is None else ()
    return {name: value for name, value in kwargs.items() if (name not in filled if names is None else name in names)}


def check_names(paths: Iterable[str], taken: Sequence[AbstractSet[str] | None]) -> None:
    """Check that there is an argument for every path of which it was said how it is cut.

    Args:
        paths: such as "x" and "masks.0".
        taken: by stage, what it can be given; None where that is any name.

    Raises AgreedError for one that no stage takes.

    >>> check_names(["x.0", "target"], [frozenset({"x"})])
    """
    known = frozenset[str]({TARGET}).union(*(names for names in taken if names is not None))
    if any(names is None for names in taken):
        return
    for path in paths:
        if path.partition(".")[0] not in known:
            raise AgreedError(
                f"batch_dims has {path!r}, and no stage is given an argument of that name in a step: the names are "
                f"{', '.join(sorted(known))}"
            )


def _filled(parameters: Mapping[str, inspect.Parameter], handed: int) -> frozenset[str]:
    """The parameters that what is handed over takes the place of."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [name for name, parameter in parameters.items() if parameter.kind in kinds]
    return frozenset(positional[:handed])
