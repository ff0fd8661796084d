"""Random generators are as before after tracing, and what moves them is named."""

import random

import numpy as np
import torch

from annopipe.graphs.random_state import noticed_draws, untouched_random_state


def test_all_generators_end_as_they_began() -> None:
    states = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002 - the global generator is what may be moved
    with untouched_random_state():
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), repr(np.random.get_state())) == states[1:]  # noqa: NPY002


def test_what_moves_is_named() -> None:
    with untouched_random_state(), noticed_draws() as moved:
        assert moved() == []
        random.random()
        assert moved() == ["draws from Python's random"]
        np.random.rand()  # noqa: NPY002
        torch.manual_seed(3)
        with torch.random.fork_rng(devices=[]):
            pass
        assert moved() == [
            "draws from Python's random",
            "draws from numpy.random",
            "seeds torch's generator",
            "sets the state of torch's generator (as torch.random.fork_rng does)",
        ]


def test_a_seed_is_noticed_whatever_it_is() -> None:
    for seed in (0, torch.initial_seed(), 2**40):
        with untouched_random_state(), noticed_draws() as moved:
            torch.manual_seed(seed)
            assert moved() == ["seeds torch's generator"]
