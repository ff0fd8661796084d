"""Regions for the exchanges of transformers' expert parallelism, put around its dispatcher when the program runs.

The model files of transformers hold no exchange: under expert parallelism, the forward of the experts is replaced by
``transformers.distributed.expert_parallel.AllToAllEP``, which sends tokens, runs the experts and brings them back. So a
region around the call of the experts, as AP102 puts it, holds both exchanges. After

    from transformers.distributed.expert_parallel import AllToAllEP
    undo = tag_expert_parallel(AllToAllEP)

the exchanges are in "experts/dispatch" and "experts/combine": the innermost tag wins. Nothing on disk changes.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from annopipe.annotate import comm
from annopipe.errors import RewriteError

__all__ = ["EXCHANGES", "tag_expert_parallel"]

# The methods of the dispatcher that exchange tokens, and the region of each.
EXCHANGES: Mapping[str, str] = {"_dispatch_tokens": "dispatch", "_combine_tokens": "combine"}
_MARK = "annopipe_region"
F = TypeVar("F", bound=Callable[..., Any])


def tag_expert_parallel(dispatcher: type, exchanges: Mapping[str, str] = EXCHANGES) -> Callable[[], None]:
    """Put the methods of a dispatcher class under ``annopipe.comm``; returns a function that undoes it.

    Args:
        dispatcher: the class, such as ``transformers.distributed.expert_parallel.AllToAllEP``.
        exchanges: region by method.

    Raises:
        RewriteError: the class has no such method (another version of the library).

    >>> class Dispatcher:
    ...     def _dispatch_tokens(self, x): return x
    ...     def _combine_tokens(self, x): return x
    >>> undo = tag_expert_parallel(Dispatcher)
    >>> Dispatcher()._dispatch_tokens(3)
    3
    >>> undo()
    """
    missing = [name for name in exchanges if not callable(getattr(dispatcher, name, None))]
    if missing:
        raise RewriteError(
            f"{dispatcher.__name__} has no {' and no '.join(missing)}: name its methods, "
            "tag_expert_parallel(cls, {method: region})"
        )
    before = {}
    for name, region in exchanges.items():
        method = getattr(dispatcher, name)
        if getattr(method, _MARK, None) != region:
            before[name] = method, name in vars(dispatcher)
            setattr(dispatcher, name, _tagged(method, region))

    def undo() -> None:
        for name, (method, own) in before.items():
            if own:
                setattr(dispatcher, name, method)
            else:
                delattr(dispatcher, name)
        before.clear()

    return undo


def _tagged(method: F, region: str) -> F:
    @functools.wraps(method)
    def tagged(*args: Any, **kwargs: Any) -> Any:
        with comm(region):
            return method(*args, **kwargs)

    setattr(tagged, _MARK, region)
    return tagged  # type: ignore[return-value]
