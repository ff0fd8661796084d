"""Overlap policies by name: the one registry beside that of declared operators (``annopipe.graphs.declared_ops``)."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from annopipe.errors import OrderError
from annopipe.ordering.patterns import Pattern, apply, parse
from annopipe.ordering.problem import OverlapProblem

__all__ = ["Policy", "PolicyWithOptions", "find", "forget", "of_one_kind_only", "policies", "policy"]

Policy = Callable[[OverlapProblem], Sequence[Any]]
F = TypeVar("F", bound=Policy)


class PolicyWithOptions(abc.ABC):
    """A policy that is a frozen dataclass: its fields are its options. It looks at costs.

    ``str`` of one with the defaults is its name; other options follow, "search(seed=1)".
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the policy, as in ``ap.policies()``."""

    @property
    @abc.abstractmethod
    def memory_bytes(self) -> int | None:
        """The limit on live bytes that an order has to keep, so that the problem needs ``values``."""

    @property
    @abc.abstractmethod
    def is_repeatable(self) -> bool:
        """Whether every call and every rank finds the same order for the same problem."""

    @abc.abstractmethod
    def __call__(self, problem: OverlapProblem) -> Sequence[int]:
        """The order of a problem."""

    def __str__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # the children are dataclasses
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields if getattr(self, f.name) != f.default]
        return f"{self.name}({', '.join(given)})" if given else self.name


_POLICIES: dict[str, Policy] = {}


@dataclasses.dataclass(frozen=True)
class _PatternPolicy:
    """A pattern as a function; optional: what it names may be missing."""

    pattern: Pattern
    optional: bool = False

    @property
    def __name__(self) -> str:
        return str(self.pattern)

    def __call__(self, problem: OverlapProblem) -> list[int]:
        return apply(problem, self.pattern, optional=self.optional)


def policy(function: F) -> F:
    """Register a policy under its function's name; ``ap.overlap(graph, policy="program_order")`` finds it.

    Defining the function again, as in a notebook, replaces it.

    The function gets an ``OverlapProblem`` and returns its nodes, or their indices or names, in the order to run. The
    order is proved legal before use.

    Raises:
        OrderError: the name is taken by another function.

    >>> @policy
    ... def program_order(problem):
    ...     return problem.nodes
    """
    if isinstance(function, PolicyWithOptions):
        return _POLICIES.setdefault(function.name, function)  # type: ignore[return-value]
    if not callable(function) or not hasattr(function, "__qualname__"):
        raise OrderError(f"a policy is a function from an OverlapProblem to an order, got {function!r}")
    name = function.__name__.removesuffix("_")  # list_ is called list
    known = _POLICIES.get(name)
    if known is not None and (known.__module__, _qualname(known)) != (function.__module__, _qualname(function)):
        raise OrderError(f"a policy named {name!r} exists already ({known.__module__}): give the function another name")
    _POLICIES[name] = function
    return function


def _qualname(function: Policy) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def policies() -> tuple[str, ...]:
    """The names of all registered policies."""
    return tuple(_POLICIES)


def forget(name: str) -> None:
    """Take a policy out of the registry."""
    _POLICIES.pop(name, None)


def find(name: str | Policy) -> tuple[str, Policy]:
    """The name and function of a policy given by either; a text with signs of the pattern language is a pattern.

    Raises:
        OrderError: there is no policy of that name, or the text is no pattern.
    """
    if isinstance(name, PolicyWithOptions):
        return str(name), name
    if callable(name):
        return getattr(name, "__name__", "policy").removesuffix("_"), name
    if isinstance(name, str) and name not in _POLICIES and any(sign in name for sign in ".;|"):
        pattern = parse(name)
        return str(pattern), _PatternPolicy(pattern)
    if not isinstance(name, str) or name not in _POLICIES:
        raise OrderError(
            f"no overlap policy {name!r}; there are {', '.join(_POLICIES)}; add one with @ap.policy, or write a "
            'pattern such as "B.combine | F.attention ; B.experts | F.dispatch"'
        )
    return name, _POLICIES[name]


def of_one_kind_only(given: str | Policy) -> str | Policy:
    """The policy of a pipeline for forwards alone, or backwards: of a pattern, written for a pair, their part.

    >>> of_one_kind_only("auto")
    'auto'
    """
    _, function = find(given)
    return dataclasses.replace(function, optional=True) if isinstance(function, _PatternPolicy) else given
