"""What a rule is: data, and at most one small function. Its examples are its tests and its page of ``--explain``."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import libcst as cst

from rewriters.anchors import Anchor
from rewriters.reading import Found, Reading
from rewriters.settings import Settings
from rewriters.sites import Site

__all__ = ["Outcome", "Place", "Rule"]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule makes of a file: the tree, and a site for each place it looked at."""

    tree: cst.Module
    sites: tuple[Site, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A place that a tagging rule has found.

    Args:
        role: of ``rewriters.anchors.ROLES``, or ``EXCHANGE``, which still has to be told.
        anchor: the text by which it was found.
    """

    found: Found
    rule: str
    role: str
    anchor: str


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    A rule that tags has ``anchors``, or ``find`` (places of its own), or ``follow`` (places that follow from tagged
    ones); any other has ``apply``.

    Args:
        safe: the code does what it did; others need ``--unsafe``.
        summary: one line for ``--list``.
        why: for ``--explain``.
        changes: pairs of code before and after.
        leaves: code that it does not touch.
        refuses: pairs of code and part of the reason.
        options: settings that the examples need.
    """

    code: str
    name: str
    summary: str
    why: str
    safe: bool = True
    changes: tuple[tuple[str, str], ...] = ()
    leaves: tuple[str, ...] = ()
    refuses: tuple[tuple[str, str], ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    anchors: tuple[Anchor, ...] = ()
    find: Callable[[Reading], Iterable[Place]] | None = None
    follow: Callable[[Reading, Iterable[Place]], Iterable[Place]] | None = None
    apply: Callable[[Reading, Settings], Outcome] | None = None
    triggers: tuple[str, ...] = ()  # texts of which a file must hold one, or the rule has nothing to do; none: no limit

    @property
    def tags(self) -> bool:
        """Whether the rule puts tags around statements."""
        return self.apply is None
