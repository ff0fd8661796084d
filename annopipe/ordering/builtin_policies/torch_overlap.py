"""``torch``: the order of PyTorch's own overlap scheduler, with our costs; for comparison.

It hides a transfer only behind computation that the transfer's inputs do not need, so in a combined graph, where every
exchange needs computation, it finds little.
"""

import importlib

from annopipe.errors import OrderError
from annopipe.ordering.host_reads import counts_early
from annopipe.ordering.problem import OverlapProblem

__all__ = ["torch_"]


def torch_(problem: OverlapProblem) -> list[int]:
    """PyTorch's overlap scheduler; needs costs.

    Raises:
        OrderError: this PyTorch has another scheduler, or none.
    """
    try:
        # Only when it is wanted: it imports PyTorch's compiler, which takes seconds.
        adapter = importlib.import_module("annopipe.ordering.torch_scheduler")
        order: list[int] = counts_early(problem, adapter.scheduled(problem))
    except (ImportError, AttributeError, TypeError) as error:
        raise OrderError(
            f"policy 'torch': this PyTorch's overlap scheduler is not one that annopipe knows ({error}); "
            "use another policy, such as 'auto'"
        ) from error
    return order
