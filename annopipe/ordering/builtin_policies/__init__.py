"""The policies that come with annopipe, one file each; importing this package registers them."""

from annopipe.ordering.builtin_policies.alternate import alternate
from annopipe.ordering.builtin_policies.auto import auto
from annopipe.ordering.builtin_policies.list_scheduling import list_
from annopipe.ordering.builtin_policies.optimal import Optimal, optimal
from annopipe.ordering.builtin_policies.published import DUALPIPE, MEGATRON, dualpipe, megatron
from annopipe.ordering.builtin_policies.search import Search, search
from annopipe.ordering.builtin_policies.sequential import sequential
from annopipe.ordering.builtin_policies.torch_overlap import torch_
from annopipe.ordering.registry import Policy, policy

__all__ = [
    "DUALPIPE",
    "MEGATRON",
    "NEED_COSTS",
    "Optimal",
    "Search",
    "alternate",
    "auto",
    "dualpipe",
    "list_",
    "megatron",
    "optimal",
    "search",
    "sequential",
    "torch_",
]

NEED_COSTS = frozenset({auto, list_, torch_})  # beside policies with options

# Here and not by a decorator, so that ap.policies() has them in this order and not in that of the files' names.
_IN_ORDER: tuple[Policy, ...] = (sequential, alternate, dualpipe, megatron, list_, auto, search, optimal, torch_)
for _each in _IN_ORDER:
    policy(_each)
