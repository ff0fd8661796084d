"""The words that others annotate with, and ours for them; each vocabulary maps both ways without loss.

A line says: ``annotate({key: value})`` is ``annopipe.call("region")``. Regions of several levels keep apart what one
vocabulary tells apart; patterns find them by any of their levels.
"""

import dataclasses
from collections.abc import Mapping

from annopipe.errors import RewriteError

__all__ = [
    "ANNOPIPE",
    "KIND_KEY",
    "LANE_KEY",
    "REGION_KEY",
    "VOCABULARIES",
    "Word",
    "checked",
    "from_torch",
    "to_torch",
]

# What annopipe's own tags annotate with (annopipe.annotate, which imports torch and so is not imported here).
REGION_KEY, KIND_KEY, LANE_KEY = "annopipe", "annopipe_kind", "annopipe_lane"
ANNOPIPE = "annopipe"


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """One line of a vocabulary."""

    key: str
    value: str
    call: str
    region: str


VOCABULARIES: Mapping[str, tuple[Word, ...]] = {
    "torchtitan": (
        Word("EP", "dispatch", "comm", "dispatch"),
        Word("EP", "combine", "comm", "combine"),
        Word("EP", "compute", "region", "moe"),  # the whole expert layer; what is inside of it has its own tags
        Word("EP_token_exchange", "dispatch", "comm", "dispatch/exchange"),
        Word("EP_token_exchange", "combine", "comm", "combine/exchange"),
        Word("EP_token_count_exchange", "dispatch", "comm", "dispatch/counts"),
        Word("EP_token_count_sync", "dispatch", "comm", "dispatch/count_sync"),
    ),
    "autoparallel": (
        Word("comm_region", "token_dispatch", "comm", "dispatch"),
        Word("comm_region", "token_combine", "comm", "combine"),
    ),
    "comm_region": (
        Word("comm_region", "dispatch", "comm", "dispatch"),
        Word("comm_region", "combine", "comm", "combine"),
    ),
    ANNOPIPE: (),  # any region, by the keys that annopipe writes itself: {"annopipe": "moe", "annopipe_kind": "comm"}
}


def checked(vocabulary: str) -> str:
    """The name of a vocabulary.

    Raises:
        RewriteError: there is none of that name.
    """
    if vocabulary not in VOCABULARIES:
        raise RewriteError(f"no vocabulary {vocabulary!r}; there are {', '.join(VOCABULARIES)}")
    return vocabulary


def from_torch(key: str, value: str) -> tuple[str, str] | None:
    """The call and the region for one annotation, or None.

    >>> from_torch("comm_region", "token_dispatch")
    ('comm', 'dispatch')
    """
    words = (word for words in VOCABULARIES.values() for word in words)
    return next(((word.call, word.region) for word in words if (word.key, word.value) == (key, value)), None)


def to_torch(vocabulary: str, call: str, region: str) -> dict[str, str] | None:
    """The annotation for one of our tags in a vocabulary, or None if that has no word for it.

    >>> to_torch("torchtitan", "comm", "dispatch"), to_torch("torchtitan", "region", "attention")
    ({'EP': 'dispatch'}, None)
    """
    if vocabulary == ANNOPIPE:
        return {REGION_KEY: region, KIND_KEY: "comm" if call == "comm" else "compute"}
    words = VOCABULARIES[vocabulary]
    return next(({word.key: word.value} for word in words if (word.call, word.region) == (call, region)), None)
