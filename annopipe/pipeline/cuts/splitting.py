"""``split``: cut a model into the stages of a pipeline, at modules that are named.

needs       a model whose forward, down to the modules named, calls its submodules one after the other: no branch on a
            tensor's value there. What happens inside the submodules does not matter: they are not looked into.
does        reads the forward with ``torch.fx`` (submodules are single calls), gives every operation to the stage in
            whose turn it comes, and has each value that a later stage needs handed on by the stages between.
guarantees  stages hold the model's own parameters and buffers under the model's own names; all stages together have all
            of them; the stages in turn compute what the model computes.

    forward:  embed -> layers.0 -> layers.1 -> layers.2 -> head       at=["layers.1", "head"]
    stages:   [embed, layers.0]  [layers.1, layers.2]  [head]         a mask that layers.2 takes passes through stage 0
"""

from collections.abc import Sequence

from torch import fx, nn

from annopipe.errors import PipelineError
from annopipe.pipeline.cuts.cutting import crossing_values, stages_of_nodes
from annopipe.pipeline.cuts.stage_modules import add_rest, build_stage
from annopipe.pipeline.cuts.top_level import read_forward
from annopipe.pipeline.ties import note_ties

__all__ = ["split"]


def split(model: nn.Module, at: Sequence[str], *, inputs: Sequence[str] = ()) -> list[nn.Module]:
    """Cut a model into stages; each name in ``at`` is the module that the next stage begins with.

    Every stage but the last returns a tuple, the arguments of the next one. Stages share parameters and buffers with
    the model; a module that two stages use (tied weights) is in both, and ``Pipeline`` keeps it one over ranks. What
    the forward decides by Python values, such as ``self.training`` or the number of layers, stays as it is when the
    model is cut.

    Args:
        model: as it is on every rank; on the meta device, if only some stages are to be given memory.
        at: names of submodules, such as "layers.4" or "model.layers.4", in the order in which forward calls them.
        inputs: parameters of forward with a default that stages are called with; others keep their default.

    Returns:
        ``len(at) + 1`` modules. A rank of a pipeline gives those that it holds to ``Pipeline``.

    Raises PipelineError, with the line of the forward or the name of the value, for what cannot be cut.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> first, second = split(model, at=["2"])
    >>> list(first.state_dict()), list(second.state_dict())
    (['0.weight', '0.bias'], ['2.weight', '2.bias'])
    >>> x = torch.ones(4, 2)
    >>> bool((second(*first(x)) == model(x)).all())
    True
    """
    names = _checked(model, at)
    graph, constants = read_forward(model, names, inputs)
    stage_of = stages_of_nodes(graph, _calls(model, graph, names))
    crossing = crossing_values(graph, stage_of, len(names))
    stages: list[nn.Module] = [
        build_stage(model, graph, stage_of, stage, crossing, constants) for stage in range(len(names) + 1)
    ]
    add_rest(model, stages)
    note_ties(stages)
    return stages


def _checked(model: nn.Module, at: Sequence[str]) -> list[str]:
    if not isinstance(model, nn.Module):
        raise PipelineError(f"split takes a module, got {type(model).__name__}")
    if isinstance(at, str):
        raise PipelineError(f"at={at!r}: give a list of names, such as at=[{at!r}]")
    known = {name for name, _ in model.named_modules(remove_duplicate=False)} - {""}
    for name in at:
        if name not in known:
            close = sorted(known, key=lambda other: (abs(other.count(".") - str(name).count(".")), other))[:5]
            raise PipelineError(f"{type(model).__name__} has no submodule {name!r}; it has {', '.join(close)}, ...")
    if len(set(at)) < len(at):
        raise PipelineError(f"at={list(at)}: a name comes twice")
    return list(at)


def _calls(model: nn.Module, graph: fx.Graph, names: Sequence[str]) -> list[fx.Node]:
    """The one call of each module that a stage begins with, in order."""
    found: list[fx.Node] = []
    order = {node: index for index, node in enumerate(graph.nodes)}
    for name in names:
        module = model.get_submodule(name)
        calls = [n for n in graph.nodes if n.op == "call_module" and model.get_submodule(str(n.target)) is module]
        if len(calls) != 1:
            times = "does not call it" if not calls else f"calls it {len(calls)} times"
            hint = (
                "name a module that it calls" if not calls else "the cut could be at any of them; name another module"
            )
            raise PipelineError(f"cannot cut at {name!r}: the forward of {type(model).__name__} {times}: {hint}")
        if found and order[calls[0]] < order[found[-1]]:
            raise PipelineError(
                f"cannot cut at {', '.join(names)}: {name!r} is called before {found[-1].target!r}: name them in "
                "the order of their calls"
            )
        found.append(calls[0])
    return found
