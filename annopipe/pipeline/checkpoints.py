"""State of a pipeline for torch.distributed.checkpoint, under the model's own names, whatever rank has which stage.

    state = ap.state_dict(pipe, optimizer)                    every rank: what it holds
    dcp.save(state, checkpoint_id="step100")
    ...
    state = ap.state_dict(pipe, optimizer)                    perhaps other ranks, another schedule
    dcp.load(state, checkpoint_id="step100")
    ap.load_state_dict(pipe, state, optimizer)

A stage's names are those of the model that ``ap.split`` cut; stages written by hand need names that differ.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.device_mesh import DeviceMesh

from annopipe.errors import PipelineError
from annopipe.pipeline.optimizer_state import begun
from annopipe.pipeline.pipeline import Pipeline
from annopipe.pipeline.state_parts import as_whole, take

__all__ = ["load_state_dict", "state_dict"]

Meshes = Mapping[str, DeviceMesh]
_FLAT = dcp_state.StateDictOptions(flatten_optimizer_state_dict=True)


def state_dict(
    pipe: Pipeline, optimizer: torch.optim.Optimizer | None = None, *, sharded: Meshes = MappingProxyType({})
) -> dict[str, Any]:
    """What this rank holds, to be saved by, or filled by, ``torch.distributed.checkpoint``; every rank calls it.

    Args:
        pipe: its stages' parameters and persistent buffers.
        optimizer: of ``pipe.parameters()``. Of a parameter that it has made no step with yet, the state has what a step
            with gradients of zero makes, counted as no step; the optimizer stays as it is.
        sharded: by pattern of names ("*.experts.*"), the mesh, of one dimension, whose ranks hold equal parts of these
            parameters along their first dimension. DTensors need no mention.

    Returns:
        {"model": tensors by name, "optimizer": values by "state.name.what" and "param_groups.name.what"}. Tensors are
        the parameters' own memory.

    Raises PipelineError, on every rank, when stages that are not copies of each other have a name in common.

    >>> import annopipe as ap
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> stages = ap.split(model, at=["1"])
    >>> pipe = ap.Pipeline(stages, ap.schedule("zbv", ranks=1, microbatches=1), loss_fn=nn.MSELoss())
    >>> list(ap.state_dict(pipe)["model"])
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    modules = pipe.modules
    placement = pipe.schedule.placement
    names = {placement.weights_of[index]: [*module.state_dict()] for index, module in modules.items()}
    _check_apart(pipe.gather(names, "state_dict"))
    model = {
        name: as_whole(name, tensor, sharded)
        for module in modules.values()
        for name, tensor in module.state_dict().items()
    }
    if optimizer is None:
        return {"model": model}
    _check_optimizer(pipe, optimizer)
    with begun(optimizer):
        found = {_own_key(key): value for key, value in _of_optimizer(modules, optimizer).items()}
    found |= _under_other_names(modules, found)
    return {"model": model, "optimizer": {key: as_whole(_name_in(key), value, sharded) for key, value in found.items()}}


def load_state_dict(pipe: Pipeline, state: Mapping[str, Any], optimizer: torch.optim.Optimizer | None = None) -> None:
    """Take a state, such as ``state_dict`` gives it and ``torch.distributed.checkpoint.load`` fills it.

    A parameter that is shared among ranks also takes a whole tensor.

    Raises PipelineError for a state that lacks something of this rank, or has it in another shape.

    >>> import annopipe as ap
    >>> pipe = ap.Pipeline([nn.Linear(1, 1)], ap.schedule("gpipe", ranks=1, microbatches=1), loss_fn=nn.MSELoss())
    >>> optimizer = torch.optim.Adam(pipe.parameters())
    >>> ap.load_state_dict(pipe, ap.state_dict(pipe, optimizer), optimizer)
    """
    for module in pipe.modules.values():
        others: dict[str, Any] = {}  # what modules keep beside tensors
        for name, held in module.state_dict().items():
            value = take(name, _entry(state, "model", name), held)
            if value is not held:
                others[name] = value
        if others:
            module.load_state_dict(others, strict=False)
    if optimizer is not None:
        with begun(optimizer) as fresh:
            template = _of_optimizer(pipe.modules, optimizer)
            found = {key: _entry(state, "optimizer", _own_key(key)) for key in template}
            values = {key: take(_own_key(key), value, template[key]) for key, value in found.items()}
            dcp_state.set_optimizer_state_dict(_root(pipe.modules), optimizer, values, options=_FLAT)
            fresh.clear()


def _check_apart(everyone: list[dict[int, list[str]]]) -> None:
    """No two stages have a name in common."""
    owner: dict[str, int] = {}
    for names_of in everyone:
        for stage, names in names_of.items():
            for name in names:
                other = owner.setdefault(name, stage)
                if other != stage:
                    raise PipelineError(
                        f"stages {other} and {stage} both have a {name}, so a checkpoint would keep one of them: give "
                        "their layers different names, as ap.split does, for example by nesting them in a module that "
                        "is called after the stage"
                    )


def _check_optimizer(pipe: Pipeline, optimizer: torch.optim.Optimizer) -> None:
    own = set(pipe.parameters())
    strange = sum(parameter not in own for group in optimizer.param_groups for parameter in group["params"])
    if strange:
        raise PipelineError(
            f"the optimizer has {strange} parameters that are not of this rank's stages: make it from pipe.parameters()"
        )


def _under_other_names(modules: Mapping[int, nn.Module], found: Mapping[str, Any]) -> dict[str, Any]:
    """What the optimizer keeps of parameters with several names, under the others: elsewhere they may be copies."""
    names_of: dict[nn.Parameter, list[str]] = {}
    for module in modules.values():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names_of.setdefault(parameter, []).append(name)
    groups = {name: names for names in names_of.values() if len(names) > 1 for name in names}
    return {
        f"{kind}.{other}.{what}": value
        for key, value in found.items()
        for kind, name, what in [(key.partition(".")[0], _name_in(key), key.rpartition(".")[2])]
        for other in groups.get(name, ())
        if other != name
    }


def _root(modules: Mapping[int, nn.Module]) -> nn.ModuleList:
    """The stages as one module; a module that two stages share counts once."""
    return nn.ModuleList(dict.fromkeys(modules.values()))


def _of_optimizer(modules: Mapping[int, nn.Module], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return dcp_state.get_optimizer_state_dict(_root(modules), optimizer, options=_FLAT)


def _own_key(key: str) -> str:
    """The key without the number that the stage has in the root.

    >>> _own_key("state.0.head.weight.exp_avg")
    'state.head.weight.exp_avg'
    """
    kind, _, rest = key.split(".", 2)
    return f"{kind}.{rest}"


def _name_in(key: str) -> str:
    """The parameter that a key of the optimizer's is about.

    >>> _name_in("state.head.weight.exp_avg")
    'head.weight'
    """
    return key.partition(".")[2].rpartition(".")[0]


def _entry(state: Mapping[str, Any], part: str, name: str) -> Any:
    if part not in state or name not in state[part]:
        raise PipelineError(f"the state has no {name!r} in {part!r}, which this rank holds")
    return state[part][name]
