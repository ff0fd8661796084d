"""What ranks that run the same stages on other data have to have alike, compared before a step is run with it.

needs       the stages of this rank, ready to be run.
does        for each process group that their parameters are spread over, or that their graphs communicate in, compares
            the parameters, how they are gathered and reduced, and the collectives of each graph.
guarantees  a difference is an error on every rank of the group, which names the parameter or the collective; nothing
            hangs, and nothing of different types is added up.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import fx
from torch.distributed.device_mesh import DeviceMesh

from annopipe.graphs import meta
from annopipe.graphs.distributed_tensors import is_distributed_tensor
from annopipe.graphs.ops import group_name, traits
from annopipe.graphs.process_groups import find_group
from annopipe.graphs.stage_graph import body
from annopipe.pipeline.data_parallel.agreeing import described, difference
from annopipe.pipeline.data_parallel.sharding import sharing_of
from annopipe.pipeline.ranks.peers import AgreedError, Peers
from annopipe.pipeline.stages.combined import Combined
from annopipe.pipeline.stages.stage import LocalStage

__all__ = ["compare_beside", "groups_of"]

_GRAPHS = {"UNSHARD": "unshard", "F": "forward", "B": "backward", "REDUCE_GRAD": "reduce_grad"}
# What a rank has to give as much of as all others.
_EVEN = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
Ranks = tuple[int, ...]


def groups_of(stages: Iterable[LocalStage], combined: Iterable[Combined]) -> list[dist.ProcessGroup]:
    """The process groups of the collectives in the graphs, and those over which parameters are spread."""
    graphs, meshes = [found.plan.graph for found in combined], list[DeviceMesh]()
    for stage in stages:
        graphs += [graph for kind in _GRAPHS if (graph := stage.graphs.of_kind(kind)) is not None]
        meshes += [p.device_mesh for p in stage.module.parameters() if is_distributed_tensor(p)]
    names = {group_name(node) for graph in graphs for node in body(graph.graph) if traits(node).launch}
    names |= {group.group_name for mesh in dict.fromkeys(meshes) for group in mesh.get_all_groups()}
    return [group for name in sorted(names) if (group := find_group(name)) is not None]


def compare_beside(peers: Peers, stages: Mapping[int, LocalStage], plan_group: dist.ProcessGroup | None) -> None:
    """Compare with the ranks that run these stages on other data: how they are called first, then the stages.

    Raises AgreedError, on every rank of the pipeline, when something differs.
    """
    groups = groups_of(stages.values(), ())
    known = [plan_group] if plan_group is not None else []
    peers.include(groups)
    peers.together(partial(peers.compare, groups), "comparing calls with the ranks of other groups")
    compare = partial(_compare_stages, peers, stages, [*groups, *known])
    peers.together(compare, "comparing stages with the ranks of other groups")


def _compare_stages(peers: Peers, stages: Mapping[int, LocalStage], groups: Iterable[dist.ProcessGroup]) -> None:
    """Compare the stages of this rank with those of the other ranks of each group, which call it, too.

    Raises AgreedError, on every rank of a group, when they differ.
    """
    by_ranks: dict[Ranks, dist.ProcessGroup] = {}
    for group in sorted(groups, key=lambda group: group.group_name):
        by_ranks.setdefault(tuple(dist.get_process_group_ranks(group)), group)
    said: dict[Ranks, dict[str, str]] = {ranks: {} for ranks in by_ranks if len(ranks) > 1}
    for index, stage in sorted(stages.items()):
        _add_parameters(said, f"stage {index}", stage)
        _add_launches(said, f"stage {index}", stage)
    errors = []
    for ranks in sorted(said):  # in one order everywhere, and all of them before any error: others wait for this rank
        own, what = said[ranks], "the stages of ranks that run them together"
        if len(set(peers.gather(_digest(own), what, by_ranks[ranks]))) > 1:
            found = difference(peers.gather(own, what, by_ranks[ranks]))
            if found is not None:
                at, name, texts = found
                errors.append(
                    f"ranks {ranks[0]} and {ranks[at]} run the same stages on other data, and differ in {name}: "
                    f"{texts[0]} and {texts[1]}; make the stages alike"
                )
    if errors:
        raise AgreedError(errors[0])


def _add_parameters(said: Mapping[Ranks, dict[str, str]], where: str, stage: LocalStage) -> None:
    """Those that are spread over ranks, to what is said to these."""
    for name, parameter in stage.module.named_parameters():
        if not is_distributed_tensor(parameter):
            continue
        mesh, sharing = parameter.device_mesh, sharing_of(stage.module, name)
        text = f"{described(parameter)}, placed {parameter.placements} on {tuple(mesh.shape)} ranks"
        if sharing is not None:
            text += (
                f", gathered in {sharing.param_dtype}, reduced in {sharing.reduce_dtype}, divided by "
                f"{sharing.divide_by:g}"
            )
        for group in mesh.get_all_groups():
            told = said.get(tuple(dist.get_process_group_ranks(group)))
            if told is not None:
                told[f"{where}, parameter {name}"] = text


def _add_launches(said: Mapping[Ranks, dict[str, str]], where: str, stage: LocalStage) -> None:
    """The collectives of its graphs, to what is said to the ranks of each."""
    for kind, called in _GRAPHS.items():
        graph = stage.graphs.of_kind(kind)
        counts: dict[Ranks, int] = {}
        for node in body(graph.graph) if graph is not None else ():
            group = find_group(group_name(node)) if traits(node).launch else None
            ranks = tuple(dist.get_process_group_ranks(group)) if group is not None else ()
            if ranks in said:
                counts[ranks] = counts.get(ranks, 0) + 1
                said[ranks][f"{where}, collective {counts[ranks]} of its {called}"] = _launch(node)


def _launch(node: fx.Node) -> str:
    """The operation with its input, as far as that is the same on all ranks."""
    name = str(node.target).split(".")[-2 if "." in str(node.target) else -1]
    value = meta.value(node.all_input_nodes[0]) if node.all_input_nodes else None
    if not isinstance(value, torch.Tensor):
        return name
    kinds = " ".join(arg for arg in node.args if isinstance(arg, str) and find_group(arg) is None)
    sizes = [size for size in value.shape if isinstance(size, int)]
    even = name in _EVEN and len(sizes) == value.dim()
    return f"{name} {kinds}{' of ' if kinds else 'of '}{f'{math.prod(sizes)} ' if even else ''}{value.dtype}"


def _digest(said: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(said.items())).encode()).hexdigest()
