"""Modules whose parameters cannot be gathered in a forward, or whose gradients cannot be added up over ranks."""

from torch import nn

from annopipe.errors import PipelineError

__all__ = ["refuse_module"]


def refuse_module(module: nn.Module, name: str) -> None:
    """Raises PipelineError for a module whose own parameters ``shard`` cannot share.

    >>> refuse_module(nn.Linear(1, 1), "head")
    """
    told = ""
    if isinstance(module, nn.RNNBase):
        told = "which keeps its weights in a list of its own"
    elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if module.sparse:
            told = "whose gradient is sparse (sparse=True), and ranks add up dense ones"
        elif module.max_norm is not None:
            told = "which changes its weight in its forward (max_norm=), and that would be lost with the gathered one"
    if told:
        raise PipelineError(
            f"shard: {name or 'the module'} is of class {type(module).__name__}, {told}: leave it alone with "
            f"ignore=[{name!r}]"
        )
