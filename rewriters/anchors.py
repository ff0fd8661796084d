"""Anchors: by which names a rule finds its places, as data; a lone method name is never enough.

A name is compared with the text of what is called ("self.experts"; subscripts do not count, so "self.self_attn" is also
``self.self_attn[0]``), or, if it is that of an imported module, with the full name ("torch.distributed.all_to_all").
"""

import dataclasses
from collections.abc import Iterable, Mapping

from rewriters.reading import Found, Reading

__all__ = ["EXCHANGE", "ROLES", "Anchor", "Anchors", "Role"]


@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """What a place does in a model, and the tag for it.

    Args:
        call: which of annopipe's context managers.
        region: the name of the region.
    """

    name: str
    call: str
    region: str


ROLES: Mapping[str, Role] = {
    role.name: role
    for role in (
        Role("router", "region", "router"),
        Role("count", "comm", "dispatch"),  # the counts are the first message of a dispatch
        Role("dispatch", "comm", "dispatch"),
        Role("experts", "region", "experts"),
        Role("combine", "comm", "combine"),
        Role("attention", "region", "attention"),
        Role("shared", "region", "shared"),
    )
}
EXCHANGE = "exchange"  # an all-to-all: count, dispatch or combine


@dataclasses.dataclass(frozen=True, slots=True)
class Anchor:
    """One name.

    Args:
        role: of ``ROLES``, or ``EXCHANGE``.
        name: dotted.
        needs: members of which the class must mention at least one (``self.experts``); none: no condition.

    >>> Anchor("router", "self.gate", ("experts",)).rule
    ''
    """

    role: str
    name: str
    needs: tuple[str, ...] = ()
    rule: str = ""

    def holds(self, found: Found, reading: Reading) -> bool:
        """Whether the place has the context that the anchor needs."""
        return not self.needs or not reading.members(found.owner).isdisjoint(self.needs)


class Anchors:
    """A table of anchors."""

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        self._by_name: dict[str, list[Anchor]] = {}
        for anchor in anchors:
            self._by_name.setdefault(anchor.name, []).append(anchor)
        self.last_parts = {name.rpartition(".")[2] for name in self._by_name}

    def match(self, found: Found, reading: Reading) -> Anchor | None:
        """The anchor that a call fits, with its context."""
        plain = found.name.replace("[]", "")
        for name in dict.fromkeys((plain, reading.imports.qualified(plain))):
            for anchor in self._by_name.get(name, ()):
                if anchor.holds(found, reading):
                    return anchor
        return None
