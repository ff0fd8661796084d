"""First values of parameters that depend on a seed and a name only, never on how the model is cut.

A parameter's values come from a generator seeded by ``seed``, its full name and, for experts, the expert's number in
the model. So a pipeline stage, a rank of an expert-parallel group, or one that has a part of a DTensor, holds exactly
the values that the whole model would have there, on every device and in every dtype (up to rounding); the global random
state is left alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.distributed.tensor import distribute_tensor

from annopipe.graphs.distributed_tensors import is_distributed_tensor, local_part
from annopipe.models.experts import Experts
from annopipe.models.router import Router

__all__ = ["initialise", "materialise"]


def materialise(module: nn.Module, device: torch.device | str) -> None:
    """Give every parameter and buffer of a module on the meta device memory on ``device``, with arbitrary values.

    ``nn.Module.to_empty`` does the same, but not for fake tensors.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}  # a tied weight stays one parameter
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter not in made:
                empty = torch.empty_like(parameter, device=device)
                made[parameter] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            setattr(part, name, made[parameter])
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, torch.empty_like(buffer, device=device))


@torch.no_grad()
def initialise(module: nn.Module, std: float, seed: int, tied: Mapping[str, str] = MappingProxyType({})) -> None:
    """Fill ``module`` in place: normalisation weights with ones, biases with zeros, others from a normal distribution.

    Args:
        module: a model or stage whose parameter names are those of the whole model.
        std: standard deviation.
        seed: any integer.
        tied: name to name: the first gets the values of the second, whether or not that one is in this stage.
    """
    for path, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            full = f"{path}.{name}"
            key = f"{seed}/{tied.get(full, full)}"
            if name == "bias":
                parameter.zero_()
            elif isinstance(part, (nn.RMSNorm, nn.LayerNorm)):
                parameter.fill_(1.0)
            elif isinstance(part, Experts):
                _fill(parameter, std, [f"{key}[{part.first + local}]" for local in range(parameter.shape[0])])
            else:
                _fill(parameter, std, [key])
        if isinstance(part, Router):
            part.reset_buffers(path)


def _fill(tensor: Tensor, std: float, keys: Sequence[str]) -> None:
    """Of a DTensor this rank's part; with several keys, each is for one entry of the first dimension."""
    shape = tensor.shape[1:] if len(keys) > 1 else tensor.shape
    values = [torch.randn(shape, generator=_generator(key), dtype=torch.float32) * std for key in keys]
    whole = torch.stack(values) if len(keys) > 1 else values[0]
    if is_distributed_tensor(tensor):
        whole = local_part(distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None))
    local_part(tensor).copy_(whole)


def _generator(key: str) -> torch.Generator:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
