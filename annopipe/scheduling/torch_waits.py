"""The waits that PyTorch 2.15 writes into schedules with messages; our runtime waits by itself where it has to.

    0SEND_F0 ... 0B0 0WAIT_SEND_F0          a message is done with when its own gradient has come back
    1SEND_B0 ... 1WAIT_SEND_B0              others at the end of the rank's row
    1REDUCE_GRAD 1WAIT_REDUCE_GRAD          a reduction at once

Where they stand is as its own passes have it: `_add_wait_send`, `_add_reduce_grad` of torch.distributed.pipelining.
"""

from collections.abc import Iterable, Iterator

from annopipe.scheduling.actions import Action

__all__ = ["is_wait", "is_waited_for", "with_waits"]

_SENDS = ("SEND_F", "SEND_B")
_WAITED_FOR = (*_SENDS, "REDUCE_GRAD")
_WAITS = frozenset(f"WAIT_{kind}" for kind in _WAITED_FOR)


def is_wait(action: Action) -> bool:
    """Whether PyTorch waits there for a message or a reduction that it has started.

    >>> is_wait(Action.parse("2WAIT_SEND_F0")), is_wait(Action.parse("2SEND_F0"))
    (True, False)
    """
    return action.kind in _WAITS


def is_waited_for(action: Action) -> bool:
    """Whether PyTorch starts something there that it has to wait for.

    >>> is_waited_for(Action.parse("2SEND_F0")), is_waited_for(Action.parse("2F0"))
    (True, False)
    """
    return action.kind in _WAITED_FOR


def with_waits(actions: Iterable[Action]) -> Iterator[Action]:
    """The actions of a rank, and where PyTorch's own lowering would wait for them.

    >>> row = [Action.parse(text) for text in ("0F0", "0SEND_F0", "0RECV_B0", "0B0", "0REDUCE_GRAD")]
    >>> " ".join(map(str, with_waits(row)))
    '0F0 0SEND_F0 0RECV_B0 0B0 0WAIT_SEND_F0 0REDUCE_GRAD 0WAIT_REDUCE_GRAD'
    """
    pending: dict[tuple[str, int, int | None], Action] = {}
    for action in actions:
        yield action
        if action.kind in _SENDS:
            pending[action.kind, action.stage, action.microbatch] = _wait(action)
        elif action.kind == "REDUCE_GRAD":
            yield _wait(action)
        for single in action.singles:
            answered = pending.pop(("SEND_F", single.stage, single.microbatch), None) if single.kind in "BI" else None
            if answered is not None:
                yield answered
    yield from pending.values()


def _wait(action: Action) -> Action:
    return Action(f"WAIT_{action.kind}", action.stage, action.microbatch)
