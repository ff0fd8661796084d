"""Order combined graphs so that communication hides behind computation."""

from annopipe.ordering import builtin_policies  # registers them

__all__ = ["builtin_policies"]
