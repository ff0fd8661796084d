"""Modules that ``fully_shard`` has sharded, made to gather their parameters in their forward and not in hooks.

needs       a module on which ``fully_shard`` or ``replicate`` of PyTorch was called, or which contains some.
does        takes away what these put on modules (classes, hooks, state), and has forward read parameters as after
            ``shard``. The only file that knows how FSDP2 is made inside.
guarantees  the parameters stay the same objects, which optimizers hold, with their values and gradients; they are
            gathered and reduced as FSDP would; what cannot be kept is refused before anything is changed.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.utils import _apply_to_tensors

from annopipe.errors import PipelineError
from annopipe.graphs.distributed_tensors import Layout
from annopipe.pipeline.data_parallel.gathering import Reads, Sharing, Within
from annopipe.pipeline.data_parallel.sharding import is_shared, read_gathered

__all__ = ["FullySharded", "from_fully_shard"]

# From 2.15 on, gradients without a reduce_dtype are added up in the parameter's own type, before in param_dtype.
_REDUCES_IN_OWN_TYPE = torch.__version__ >= "2.15"

# PyTorch 2.11: one group of parameters in a state, and another name for what tensor parallelism has made.
_HAS_ONE_GROUP = not isinstance(getattr(FSDPState, "_fsdp_param_group", None), property)

_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")  # for Dynamo, on every module inside


def from_fully_shard(module: nn.Module) -> nn.Module:
    """Have a module that ``fully_shard`` has sharded gather its parameters in its forward, for ``ap.Pipeline``.

    It becomes what ``ap.shard`` would have made of it: classes and hooks of FSDP go, and graphs have the gathering of
    parameters and the reduction of gradients. The parameters are the same objects as before, so that optimizers and
    checkpoints go on with them; gradients come into their ``grad`` as FSDP puts them there, divided as it does.
    Meshes of one dimension or two (hybrid), several groups, parameters that are left out, shards along other
    dimensions, tensor- and expert-parallel parameters, and mixed precision are kept; ``replicate`` is taken, too. A
    pipeline gathers once per step, so that ``reshard_after_forward``, prefetching and memory pools mean nothing more.
    ``ap.attach`` calls it for the stages of a schedule.

    Args:
        module: changed in place; call this before the first step or between two.

    Returns:
        The module.

    Raises PipelineError, and changes nothing, for what cannot be kept: offloading, communication or hooks of one's own,
    gradient synchronization that is off, extensions of tensor subclasses, ``dp_mesh_dims``, gradients that wait.

    >>> import torch.distributed as dist
    >>> from torch.distributed.fsdp import fully_shard
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = fully_shard(nn.Linear(3, 2), mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
    >>> weight = model.weight
    >>> model = from_fully_shard(model)
    >>> type(model).__name__, model.weight is weight, model(torch.ones(4, 3)).shape
    ('Linear', True, torch.Size([4, 2]))
    >>> dist.destroy_process_group()
    """
    FullySharded(module, "the module").take_over()
    return module


class FullySharded:
    """The parts of a module that ``fully_shard`` has sharded.

    Args:
        module: may also be one without such parts.
        where: what errors call it.

    Raises PipelineError for what cannot be kept.
    """

    def __init__(self, module: nn.Module, where: str) -> None:
        self._module = module
        self._parts: list[nn.Module] = []
        self._states: dict[FSDPState, str] = {}
        inside = set(module.modules())
        sharded = {part for part in inside if isinstance(part, FSDPModule)}
        for name, part in module.named_modules():
            if part in sharded:
                of = f"{where}.{name}" if name else where
                self._parts.append(part)
                self._states.setdefault(_state_of(of, part), of)
        for state, of in self._states.items():
            _Refusals(of).of_state(state, inside)

    def take_over(self) -> None:
        """Have them gather their parameters in their forward."""
        for state in self._states:
            _take_hooks_off(state)
        reads: dict[Sharing, Reads] = {}
        found: dict[nn.Module, dict[str, Reads]] = {}
        for group in (group for state in self._states for group in _groups_of(state)):
            for parameter in group.fsdp_params:
                sharing = _sharing(parameter, group.gradient_divide_factor)
                for module, name in _places(parameter):
                    found.setdefault(module, {})[name] = reads.setdefault(sharing, Reads(sharing))
        for part in self._parts:
            self._reset(part)
        for child in self._module.modules():
            for mark in _MARKS:
                child.__dict__.pop(mark, None)
        read_gathered(self._module, found)
        self._states.clear()  # with what FSDP holds for them

    @staticmethod
    def _reset(part: nn.Module) -> None:
        """The class, the methods and the state that a module had before ``fully_shard``."""
        state = _module_state_mapping.pop(part)()
        for name, method in _forward_methods(part).items():
            delattr(part, name)
            if getattr(part, name, None) != method:
                setattr(part, name, method)
        kind: Any = type(part)
        part.__class__ = kind.__mro__[kind._orig_cls_mro_index]
        for function, found in list(part.__dict__.get(STATE_KEY, {}).items()):
            if found is state:
                del part.__dict__[STATE_KEY][function]
                part.__dict__[REGISTRY_KEY].pop(function.__name__, None)
        for key in (STATE_KEY, REGISTRY_KEY):
            if not part.__dict__.get(key, True):
                del part.__dict__[key]


def _state_of(of: str, part: nn.Module) -> FSDPState:
    reference = _module_state_mapping.get(part)
    state = None if reference is None else reference()
    made, *_ = type(part).__bases__
    if not isinstance(state, FSDPState) or not issubclass(made, FSDPModule):
        raise PipelineError(
            f"{of} is a {type(part).__name__}, an FSDPModule that fully_shard has not made, or whose class was changed "
            "afterwards: call fully_shard last, on modules of plain classes"
        )
    return state


def _groups_of(state: FSDPState) -> list[Any]:
    """Its groups of parameters."""
    if _HAS_ONE_GROUP:
        return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return list(state._fsdp_param_groups)


class _Refusals:
    """Raises PipelineError for what a gather and a reduction in a graph do not do."""

    def __init__(self, of: str) -> None:
        self._of = of

    def of_state(self, state: FSDPState, inside: set[nn.Module]) -> None:
        """Of one call of ``fully_shard``; ``inside`` is what is taken over."""
        of, policy = self._of, state._mp_policy
        if not set(state._modules) <= inside:
            raise PipelineError(
                f"{of} is in one call of fully_shard with modules outside of it: take over a module that contains "
                "them all"
            )
        states = (state._training_state, *(group._training_state for group in _groups_of(state)))
        if any(each is not TrainingState.IDLE for each in states):
            raise PipelineError(f"{of} is in the middle of a forward or backward under FSDP: finish it first")
        casts = (policy.cast_forward_inputs and policy.param_dtype is not None) or policy.output_dtype is not None
        for part in state._modules:
            if casts and (methods := _forward_methods(part)):
                raise PipelineError(
                    f"{of}: register_fsdp_forward_method was called for {', '.join(methods)}, and the "
                    "MixedPrecisionPolicy casts what it takes or returns: cast in the method, with "
                    "cast_forward_inputs=False and without output_dtype"
                )
        for group in _groups_of(state):
            self._of_group(group)
            for parameter in group.fsdp_params:
                self._of_parameter(parameter)

    def _of_group(self, group: Any) -> None:
        of_torch = _fsdp_collectives.__name__
        own = [c for c in (group._all_gather_comm, group._reduce_scatter_comm) if type(c).__module__ != of_torch]
        unsharded = [getattr(parameter, "_unsharded_param", None) for parameter in group.fsdp_params]
        waiting = [parameter.unsharded_accumulated_grad for parameter in group.fsdp_params]
        waiting += [group._partial_reduce_output, *(p.grad for p in unsharded if p is not None)]
        refused = (
            (isinstance(group.offload_policy, CPUOffloadPolicy), "offloads parameters to the CPU", "leave it out"),
            (own, f"communicates by {type(own[0]).__name__ if own else ''}", "leave set_custom_... out"),
            (group._all_reduce_hook is not None, "has an all-reduce hook", "leave set_all_reduce_hook out"),
            (
                any(gradient is not None for gradient in waiting),
                "has gradients that are not reduced yet",
                "run the last backward with set_requires_gradient_sync(True), or drop them with reset_iter_state()",
            ),
            (
                not group.reduce_grads or not group.all_reduce_grads,
                "does not synchronize gradients now",
                "call set_requires_gradient_sync(True): a step reduces the sum over its microbatches, once",
            ),
        )
        for holds, what, instead in refused:
            if holds:
                raise PipelineError(f"{self._of} is sharded by fully_shard and {what}: {instead}")

    def _of_parameter(self, parameter: Any) -> None:
        what = f"{self._of}: {parameter._module_info.param_name}"
        if not _HAS_ONE_GROUP and parameter.mesh_info.is_spmd_mesh:
            raise PipelineError(
                f"{what} was sharded with dp_mesh_dims: give fully_shard the data-parallel mesh, and parameters that "
                "are DTensors on the other dimensions alone"
            )
        if hasattr(parameter._sharded_local_tensor, "fsdp_pre_all_gather"):
            kind = type(parameter._sharded_local_tensor).__name__
            raise PipelineError(f"{what} is a {kind}, which has its own all-gather: shard plain tensors")
        for module, name in _places(parameter):
            if is_shared(module, name):
                raise PipelineError(f"{what} was sharded by ap.shard and then by fully_shard: leave one of them out")
            if isinstance(module, nn.RNNBase):
                raise PipelineError(
                    f"{what} is of a recurrent module, which keeps its weights in a list of its own: give its "
                    "parameters to fully_shard as ignored_params"
                )


def _places(parameter: Any) -> Iterator[tuple[nn.Module, str]]:
    """The modules that have a parameter, with its name there."""
    info = parameter._module_info
    yield info.module, info.param_name
    yield from zip(info.shared_modules, info.shared_param_names, strict=True)


def _sharing(parameter: Any, divide_by: float | None) -> Sharing:
    """How FSDP gathers it, and reduces its gradient."""
    of, policy = parameter.mesh_info, parameter.mp_policy
    spec = None
    if parameter.is_dtensor:
        spec = parameter._tp_spec if _HAS_ONE_GROUP else parameter._unsharded_dtensor_spec
    within = None
    if spec is not None:
        layout = Layout(spec.mesh, tuple(spec.placements), spec.tensor_meta.shape, spec.tensor_meta.stride)
        within = Within(layout, parameter._orig_size, tuple(parameter._contiguous_orig_stride))
    mesh = of.mesh
    names = mesh.mesh_dim_names or ()
    shared, repeated = (
        None if at is None else mesh[names[at]] if mesh.ndim > 1 else mesh
        for at in (of.shard_mesh_dim, of.replicate_mesh_dim)
    )
    return Sharing(
        shared,
        repeated,
        policy.param_dtype,
        policy.reduce_dtype or (None if _REDUCES_IN_OWN_TYPE else policy.param_dtype),
        mesh.size() if divide_by is None else divide_by,
        parameter.fsdp_placement.dim,
        within,
    )


def _forward_methods(part: nn.Module) -> dict[str, Any]:
    """Those for which ``register_fsdp_forward_method`` was called, as they were before."""
    code = {name: getattr(value, "__code__", None) for name, value in vars(part).items()}
    return {
        name: vars(part)[name].__wrapped__
        for name, found in code.items()
        if found is not None and (found.co_name, found.co_filename) == ("wrapped_method", _fully_shard.__file__)
    }


def _take_hooks_off(state: FSDPState) -> None:
    """Parameters are sharded ones afterwards; casts of inputs and outputs stay in the places of the hooks."""
    policy = state._mp_policy
    given = policy.param_dtype if policy.cast_forward_inputs else None
    casts = {
        "_forward_pre_hooks": None if given is None else _Cast(given).inputs,
        "_forward_hooks": None if policy.output_dtype is None else _Cast(policy.output_dtype).output,
    }
    for held in dict.fromkeys((state._pre_forward_hook_handle, state._post_forward_hook_handle)):
        for handle in getattr(held, "handles", (held,)):
            for part in state._modules:
                for table, cast in casts.items():
                    hooks = getattr(part, table)
                    if handle.id in hooks and cast is not None:
                        hooks[handle.id] = cast
                    elif handle.id in hooks:
                        handle.remove()
    for group in _groups_of(state):
        if group._all_gather_result is not None:
            group.wait_for_unshard()
        group._to_sharded()
        handles = (group._module_to_pre_save_state_dict_hook_handle, group._module_to_pre_load_state_dict_hook_handle)
        for handle in (h for by_module in handles for h in by_module.values()):
            handle.remove()
        for parameter in group.fsdp_params:
            parameter._post_load_hook_handle.remove()


class _Cast:
    """Hooks that cast what is floating-point, also inside containers, as FSDP's do."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def inputs(self, _module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before a forward."""
        return _apply_to_tensors(self._cast, args), _apply_to_tensors(self._cast, kwargs)

    def output(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """After a forward."""
        return _apply_to_tensors(self._cast, output)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor
