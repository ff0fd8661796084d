"""``shard``: data parallelism inside a stage, with parameters that are DTensors and are gathered when they are read.

needs       a module and the device mesh of its data-parallel ranks.
does        makes every parameter a DTensor; has the module's forward read it gathered.
guarantees  names in ``state_dict`` and ``named_parameters`` stay; gathering and reducing are operations of the forward
            and of its backward, so that tracing sees them; outside of a forward an attribute is the DTensor itself, so
            that initialising works on it; one gather serves all reads of a forward.
"""

import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from annopipe.errors import PipelineError
from annopipe.pipeline.data_parallel.agreeing import check_alike, facts_of_call
from annopipe.pipeline.data_parallel.gathering import Reads, Sharing
from annopipe.pipeline.data_parallel.refusals import refuse_module, refuse_options

__all__ = ["is_shared", "read_gathered", "shard", "sharing_of"]

Mode = Literal["shard", "replicate", "hybrid"]
_READS, _SCOPES = "_annopipe_reads", "_annopipe_scopes"  # of a module: what reads a parameter; what its forward begins


def shard(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    mode: Mode = "shard",
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    divide_by: int | None = None,
    ignore: Iterable[str] = (),
) -> nn.Module:
    """Shard a module's parameters and gradients over data-parallel ranks, each of which has other data.

    Every parameter becomes a DTensor, under its own name. Where the forward of the module, or of a module in it, reads
    the parameter, it gets the whole one; its gradient is the mean over the ranks, as from ``DistributedDataParallel``.
    Parameters that an earlier call has made stay as they are: shard experts over their own mesh first, then the
    rest. Modules that share a parameter, as tied stages of one rank do, may be in one call,
    ``shard(nn.ModuleList(stages), mesh)``, or in several with the same options. All ranks of the mesh call it with the
    same options and get the values of the first one; on the meta device nothing is sent, so that ranks are compared in
    the first step, and ``to_empty`` gives memory to this rank's parts only.

    In a pipeline a stage gathers its parameters once per step, or where the schedule has UNSHARD, and reduces the sum
    of its microbatches' gradients once. A forward that is called by other means than the module, such as
    ``module.forward(x)``, reads DTensors. Traced with ``strict=True``, each read of a parameter reduces a gradient of
    its own, and these are added up afterwards.

    Args:
        module: changed in place; also on the meta device.
        mesh: one dimension of ranks; for "hybrid" two, with names: parameters repeat along the first and are sharded
            along the second.
        mode: "shard": each rank holds a part of the first dimension, and the whole only while it computes;
            "replicate": each rank holds all; "hybrid": sharded along one dimension of the mesh, and repeated along
            the other.
        param_dtype: what forward and backward compute with; None is the parameter's own.
        reduce_dtype: what gradients are added up over ranks in; None is the parameter's own.
        divide_by: what the sum over the ranks is divided by; None is their number. For experts, which get the tokens of
            all expert-parallel ranks, it is the number of all data-parallel ranks.
        ignore: names of parameters and modules to leave alone.

    Returns:
        The module.

    Raises PipelineError for a mesh that does not fit the mode, for DTensors that others have made, and on all ranks
    when these have other options or parameters.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = shard(nn.Linear(3, 2), dist.device_mesh.init_device_mesh("cpu", (1,)))
    >>> model(torch.ones(4, 3)).shape, list(model.state_dict()), model.weight.placements
    (torch.Size([4, 2]), ['weight', 'bias'], (Shard(dim=0),))
    >>> dist.destroy_process_group()
    """
    refuse_options(mesh, (param_dtype, reduce_dtype), divide_by, ignore)
    _check_mesh(mesh, mode)
    repeated = {"replicate": mesh, "shard": None, "hybrid": _dimension(mesh, 0)}[mode]
    sharded = {"replicate": None, "shard": mesh, "hybrid": _dimension(mesh, 1)}[mode]
    divisor = mesh.size() if divide_by is None else divide_by
    reads = Reads(Sharing(sharded, repeated, param_dtype, reduce_dtype, divisor))
    wanted = _wanted(module, tuple(ignore))
    check_alike(mesh, facts_of_call(module, mode, reads.sharing, wanted))
    made = {parameter: reads.distributed(parameter, mesh) for found in wanted.values() for parameter in found.values()}
    for child, found in wanted.items():
        child._parameters.update({key: made[parameter] for key, parameter in found.items()})
    read_gathered(module, {child: dict.fromkeys(found, reads) for child, found in wanted.items()})
    return module


def read_gathered(module: nn.Module, reads: Mapping[nn.Module, Mapping[str, Reads]]) -> None:
    """Have a module's forward, and those of the modules in it, read these parameters so."""
    for child, own in reads.items():
        if own:
            child.__dict__.setdefault(_READS, {}).update(own)
            child.register_load_state_dict_pre_hook(_take_whole_tensors)
    for child in module.modules():
        own = reads.get(child, {})
        # Also of earlier calls: this forward may read a parameter of a module in it, without calling that.
        inside = dict.fromkeys(each for part in child.modules() for each in part.__dict__.get(_READS, {}).values())
        if not inside:
            continue
        child.__dict__[_SCOPES] = list(inside)
        if own or not isinstance(child, _Scoped):
            child.__class__ = _reading(type(child), tuple(own))  # type: ignore[arg-type]  # classes are hashable


def is_shared(module: nn.Module, name: str) -> bool:
    """Whether the module reads a parameter of its own gathered."""
    return name in module.__dict__.get(_READS, ())


def sharing_of(module: nn.Module, name: str) -> Sharing | None:
    """How a parameter, by its name in the module, is gathered and its gradient reduced; None if ``shard`` has not."""
    prefix, _, key = name.rpartition(".")
    reads = module.get_submodule(prefix).__dict__.get(_READS, {}).get(key)
    return None if reads is None else reads.sharing


def _check_mesh(mesh: DeviceMesh, mode: str) -> None:
    if mode not in get_args(Mode):
        raise PipelineError(f"shard: mode={mode!r}: give one of {', '.join(get_args(Mode))}")
    dimensions = 2 if mode == "hybrid" else 1
    if mesh.ndim != dimensions or (dimensions == 2 and mesh.mesh_dim_names is None):
        names = mesh.mesh_dim_names or "no names"
        raise PipelineError(
            f"shard: mode={mode!r} takes a mesh of {dimensions} dimension{'s, with names' if dimensions > 1 else ''}, "
            f"got one of {mesh.ndim} ({names}): select a dimension with mesh[name]"
        )


def _dimension(mesh: DeviceMesh, at: int) -> DeviceMesh | None:
    return mesh[mesh.mesh_dim_names[at]] if mesh.ndim == 2 and mesh.mesh_dim_names is not None else None


def _wanted(module: nn.Module, ignored: tuple[str, ...]) -> dict[nn.Module, dict[str, nn.Parameter]]:
    """By module: the parameters to distribute.

    Raises PipelineError for what cannot be, and for a name to ignore that nothing has.
    """
    names = {name for name, _ in (*module.named_modules(), *module.named_parameters(remove_duplicate=False))}
    if unknown := sorted(set(ignored) - names):
        raise PipelineError(f"shard: ignore: {type(module).__name__} has no parameter or module {', '.join(unknown)}")
    found: dict[nn.Module, dict[str, nn.Parameter]] = {}
    for prefix, child in module.named_modules():
        found[child] = {}
        for key, parameter in child._parameters.items():
            name = f"{prefix}.{key}" if prefix else key
            parts = name.split(".")
            if parameter is None or any(".".join(parts[:end]) in ignored for end in range(len(parts) + 1)):
                continue
            if is_shared(child, key):
                continue
            if isinstance(parameter, DTensor):
                raise PipelineError(
                    f"shard: parameter {name} is a DTensor already, placed {parameter.placements} on "
                    f'{parameter.device_mesh}: leave it alone with ignore=["{name}"], and see to its gradient yourself'
                )
            refuse_module(child, prefix)
            found[child][key] = parameter
    return found


@functools.cache
def _reading(cls: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The class of a module whose parameters of these names are gathered when they are read in a forward."""
    properties = {name: property(functools.partial(_read, name=name)) for name in names}
    described = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    bases = (cls,) if issubclass(cls, _Scoped) else (_Scoped, cls)
    return type(cls.__name__, bases, {**described, **properties})


class _Scoped(nn.Module):
    """Begins and ends reads with its forward."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return super().__call__(*args, **kwargs)
        with contextlib.ExitStack() as stack:
            for reads in self.__dict__[_SCOPES]:
                stack.enter_context(reads.inside())
            return super().__call__(*args, **kwargs)


def _read(module: nn.Module, name: str) -> Any:
    parameters = module._parameters
    if name not in parameters:
        raise AttributeError(f"{type(module).__name__!r} object has no attribute {name!r}")
    return module.__dict__[_READS][name].read(parameters[name])


def _take_whole_tensors(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Have ``load_state_dict`` take whole tensors, too, as every rank reads them from one file."""
    for key, parameter in module._parameters.items():
        value = state_dict.get(prefix + key)
        if isinstance(parameter, DTensor) and isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
            # Parts without memory may be assigned.
            placed = value.detach().to(parameter.device_mesh.device_type if parameter.is_meta else parameter.device)
            state_dict[prefix + key] = distribute_tensor(
                placed, parameter.device_mesh, parameter.placements, src_data_rank=None
            )
