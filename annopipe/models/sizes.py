"""The sizes that every model here has, and checks of sizes that name the config and the field."""

from collections.abc import Iterable
from typing import Any, Protocol

from annopipe.errors import GraphError

__all__ = ["StageSizes", "check_integers", "check_positive", "check_relations"]


class StageSizes(Protocol):
    """What a pipeline stage needs to know of its model: how many blocks there are, and how weights begin."""

    @property
    def layers(self) -> int:
        """Number of blocks of the whole model."""

    @property
    def init_std(self) -> float:
        """Standard deviation of freshly initialised weights."""


def check_integers(config: Any, least: int, names: Iterable[str]) -> None:
    """Refuse fields of ``config`` that are not integers of at least ``least``.

    Raises:
        GraphError: naming config, field and value.
    """
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise GraphError(f"{_of(config)}: {name} is {value!r}; it must be an integer of at least {least}")


def check_positive(config: Any, names: Iterable[str]) -> None:
    """Refuse fields of ``config`` that are not positive numbers.

    Raises:
        GraphError: naming config, field and value.
    """
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, (int, float)) or not value > 0:
            raise GraphError(f"{_of(config)}: {name} is {value!r}; it must be a positive number")


def check_relations(config: Any, relations: Iterable[tuple[bool, str]]) -> None:
    """Refuse a config for which a relation between fields does not hold.

    Args:
        config: the config.
        relations: what must hold, each with what to say when it does not.

    Raises:
        GraphError: with the first message whose relation does not hold.
    """
    for holds, message in relations:
        if not holds:
            raise GraphError(f"{_of(config)}: {message}")


def _of(config: Any) -> str:
    return type(config).__name__
