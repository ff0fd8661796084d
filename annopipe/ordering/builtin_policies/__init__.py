"""The policies that come with annopipe, one file each; importing this package registers them."""

from annopipe.ordering.builtin_policies.alternate import alternate
from annopipe.ordering.builtin_policies.list_scheduling import list_
from annopipe.ordering.builtin_policies.sequential import sequential

__all__ = ["alternate", "list_", "sequential"]
