"""Whether the ranks that share a module's parameters do it alike: they tell each other before anything else is sent.

A rank with other options would have other collectives: one that waits for ever, or adds up something else.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from annopipe.errors import PipelineError
from annopipe.ordering.gathering import gather
from annopipe.pipeline.data_parallel.gathering import Sharing

__all__ = ["check_alike", "described", "difference", "facts_of_call"]

Facts = Mapping[str, str]  # by name, what has to be the same on all ranks


def facts_of_call(
    module: nn.Module, mode: str, sharing: Sharing, wanted: Mapping[nn.Module, Mapping[str, nn.Parameter]]
) -> Facts:
    """What all ranks of a mesh have to say in one call of ``shard``; nothing where it sends nothing.

    Args:
        module: given to ``shard``.
        mode: as given.
        sharing: what follows from the other options.
        wanted: the parameters to distribute, by module and name.
    """
    names = {child: f"{name}." if name else "" for name, child in module.named_modules()}
    parameters = {names[child] + key: p for child, found in wanted.items() for key, p in found.items()}
    if all(parameter.is_meta for parameter in parameters.values()):
        return {}
    return {
        "mode": mode,
        "param_dtype": str(sharing.param_dtype),
        "reduce_dtype": str(sharing.reduce_dtype),
        "divide_by": f"{sharing.divide_by:g}",
        **{f"parameter {name}": described(parameter) for name, parameter in parameters.items()},
    }


def described(parameter: torch.Tensor) -> str:
    """Type, shape and whether it is trained.

    >>> described(nn.Parameter(torch.ones(2, 3)))
    'torch.float32 (2, 3) requires_grad=True'
    """
    return f"{parameter.dtype} {tuple(parameter.shape)} requires_grad={parameter.requires_grad}"


def check_alike(mesh: DeviceMesh, said: Facts) -> None:
    """Compare what the ranks of a mesh say; all of them call it, or none does.

    Raises PipelineError, on all of them, when it differs.
    """
    groups = mesh.get_all_groups()
    if not said or mesh.size() == 1 or any(dist.get_backend(group) == "fake" for group in groups):
        return  # a fake group has no other ranks
    everyone = [said]
    for group in reversed(groups):
        everyone = [one for told in gather(everyone, group) for one in told]
    ranks = mesh.mesh.flatten().tolist()
    if (found := difference(everyone)) is not None:
        at, name, texts = found
        raise PipelineError(
            f"shard: ranks {ranks[0]} and {ranks[at]} of a mesh have different {name}: {texts[0]} and {texts[1]}; give "
            "all ranks of the mesh the same"
        )


def difference(told: Sequence[Facts]) -> tuple[int, str, tuple[str, str]] | None:
    """The first name for which a rank says something else than the first one: that rank, the name and both texts.

    >>> difference([{"mode": "shard"}, {"mode": "shard", "bias": "float"}])
    (1, 'bias', ('none', 'float'))
    """
    first = told[0]
    for at, other in enumerate(told):
        for name in dict.fromkeys((*first, *other)):
            texts = first.get(name, "none"), other.get(name, "none")
            if texts[0] != texts[1]:
                return at, name, texts
    return None
