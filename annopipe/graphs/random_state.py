"""Random generators around a trace: they end as they began, and what forward draws outside of the graph is noticed.

Torch's own draws become nodes. A draw from Python's or numpy's generator would be frozen into the graph, and a seed
that forward sets would be set once, while tracing, and never again.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["noticed_draws", "untouched_random_state"]

_SENTINEL = 0x5EED_0F_7ACE  # a seed that nobody else sets


@contextlib.contextmanager
def untouched_random_state() -> Iterator[None]:
    """Restore the CPU generators of torch, Python and numpy. Tracing draws nothing on other devices."""
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), _numpy_state()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if numpy_state is not None:
            sys.modules["numpy.random"].set_state(numpy_state)


@contextlib.contextmanager
def noticed_draws() -> Iterator[Callable[[], list[str]]]:
    """Yields a function that names what has happened since: generators that moved, a seed or a state that was set."""
    torch.default_generator.manual_seed(_SENTINEL)
    python_state, numpy_state = random.getstate(), repr(_numpy_state())
    set_state, states = torch.set_rng_state, list[Any]()

    def moved() -> list[str]:
        found = []
        if random.getstate() != python_state:
            found.append("draws from Python's random")
        if repr(_numpy_state()) != numpy_state:
            found.append("draws from numpy.random")
        if torch.default_generator.initial_seed() != _SENTINEL:
            found.append("seeds torch's generator")
        if states:
            found.append("sets the state of torch's generator (as torch.random.fork_rng does)")
        return found

    torch.set_rng_state = states.append  # type: ignore[assignment]  # how torch.random.fork_rng calls it
    try:
        yield moved
    finally:
        torch.set_rng_state = set_state


def _numpy_state() -> Any:
    module = sys.modules.get("numpy.random")
    return None if module is None else module.get_state()
