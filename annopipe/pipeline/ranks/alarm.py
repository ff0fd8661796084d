"""An alarm: the rank that stops in the middle of a step tells the others, which then stop too, and say why.

It is a text in the store of each process group, for which a thread looks while a step runs. Whoever hears the alarm
closes the connections of its own groups, so that its waiting ends at once. The store may be gone, or its host may have
stalled: whatever touches it has a time limit, and without it the closed connections stop one rank after the other.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import torch.distributed as dist

from annopipe.errors import PipelineError
from annopipe.pipeline.ranks.closing import close_connections

__all__ = ["Alarm"]

_Answer = TypeVar("_Answer")
_KEY = "annopipe/stopped"
_STORE_LIMIT_S = 1.0
_CONNECT_LIMIT_S = 30.0
_NEWS_S = 0.5  # how long the news of a rank may take after its connections are closed


class Alarm:
    """What one rank hears from, and tells, the ranks of its groups; a context manager that listens meanwhile.

    Args:
        groups: the ranks that are told, and whose connections are closed.
        poll_s: how often it looks.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup], poll_s: float) -> None:
        self._poll_s = poll_s
        self._groups: list[dist.ProcessGroup] = []
        self._stores: list[dist.Store] = []
        self._heard = ""
        self._over = threading.Event()
        self.include(groups)

    def include(self, groups: Sequence[dist.ProcessGroup]) -> None:
        """More groups."""
        for group in groups:
            if group not in self._groups:
                store: Any = group.get_group_store()  # the stub lacks clone
                self._groups = [*self._groups, group]
                if store is not None:  # a group that is written in Python may have none
                    # A connection of its own: nothing else waits while this one is waited for.
                    own = _in_time(store.clone, _CONNECT_LIMIT_S)
                    if own is None:
                        raise PipelineError(
                            "the store of the process group does not answer: the rank that hosts it, the first one, "
                            "has ended or stalled; look at its output"
                        )
                    self._stores = [*self._stores, own]

    @property
    def heard(self) -> str:
        """What another rank told; "" while all is well."""
        return self._heard

    def __enter__(self) -> "Alarm":
        self._over = threading.Event()
        threading.Thread(target=self._listen, args=(self._over,), name="annopipe-alarm", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def ask(self) -> str:
        """What another rank told, or is about to tell; "" if nobody does."""
        until = time.monotonic() + _NEWS_S
        while not self._heard and time.monotonic() < until:
            self._heard = _in_time(self._read) or ""
            time.sleep(_NEWS_S / 10)
        return self._heard

    def tell(self, text: str) -> None:
        """Tell the others why this rank stops, and stop whatever waits for it."""
        self._over.set()
        _in_time(lambda: self._write(text))
        self.close()

    def silent(self) -> list[int]:
        """Ranks of the first group that do not say, within a moment of the alarm, that they have stopped as well."""
        group = self._groups[0]
        own, size = dist.get_rank(group), dist.get_world_size(group)
        _in_time(lambda: self._write("yes", f"/{own}"))
        missing, until = [rank for rank in range(size) if rank != own], time.monotonic() + _NEWS_S
        while missing and time.monotonic() < until:
            time.sleep(_NEWS_S / 10)
            found = _in_time(partial(self._missing, missing))
            if found is None:
                break  # the store is gone, and with it what they said
            missing = found
        return missing

    def _missing(self, ranks: Sequence[int]) -> list[int]:
        with contextlib.suppress(RuntimeError):
            return [rank for rank in ranks if not self._stores[0].check([f"{_KEY}/{rank}"])]
        return list(ranks)

    def close(self) -> None:
        """Close the connections of all groups."""
        for group in self._groups:
            close_connections(group)

    def _listen(self, over: threading.Event) -> None:
        while not over.wait(self._poll_s):
            text = self._read()
            if text and not over.is_set():
                self._heard = text
                self.close()
                return

    def _read(self) -> str:
        for store in self._stores:
            with contextlib.suppress(RuntimeError):  # the store's host is gone; the connections to it tell that, too
                if store.check([_KEY]):
                    return str(store.get(_KEY).decode())
        return ""

    def _write(self, text: str, where: str = "") -> None:
        for store in self._stores:
            with contextlib.suppress(RuntimeError):
                store.set(f"{_KEY}{where}", text)


def _in_time(ask: Callable[[], _Answer], limit_s: float = _STORE_LIMIT_S) -> _Answer | None:
    """The answer, or None when the store does not give one in time."""
    answers: list[_Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), name="annopipe-store", daemon=True)
    thread.start()
    thread.join(limit_s)
    return answers[0] if answers else None
