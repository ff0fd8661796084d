"""Whether what a stage hands on in nano-batches makes up what it hands on for the whole microbatch.

Outputs that depend on the batch are put together from their parts. Others have to be the same however long the batch
is: a mean over the batch is not, nor ``torch.arange(len(x))``. Of these the values themselves are compared.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import fx

from annopipe.errors import PipelineError
from annopipe.graphs import meta
from annopipe.graphs.ops import traits
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes, output_nodes
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.pipeline.stages.dead_gradients import is_made_anew

__all__ = ["check_outputs"]

_WHOLE = "or run this stage on whole microbatches (2F0 in the schedule, and not 2F0/2)"


def check_outputs(stage: int, whole: StageGraphs, parts: Sequence[StageGraphs], dims: Mapping[str, int | None]) -> None:
    """Raises PipelineError for an output without the batch that is another one for every nano-batch, or for the whole.

    Args:
        stage: its number.
        whole, parts: its graphs for a whole microbatch, and for each nano-batch.
        dims: of inputs and outputs, by port: the dimension that is the batch, None for none.
    """
    batched = {name for name, dim in dims.items() if dim is not None}
    made = [_made_from_batch(graphs.forward, batched) for graphs in (whole, *parts)]
    outputs = [port for port in whole.forward.outputs if port.name in whole.layout.tensors]
    for port in outputs:
        nodes = [_output(graphs.forward, port.name) for graphs in (whole, *parts)]
        depends = any(node in found for node, found in zip(nodes, made, strict=True))
        if depends and port.name not in batched:
            raise PipelineError(
                f"stage {stage}: {port.name} of shape {list(port.shape)} is computed from the batch, or at random, "
                "and no dimension of it is the batch (such as a mean or a sum), so that every nano-batch has "
                f"another: return one value per sequence, {_WHOLE}"
            )
        if depends:
            continue
        values = [_value(graphs.forward, node) for graphs, node in zip((whole, *parts), nodes, strict=True)]
        if not _same(values[0], values[1:], dims[port.name]):
            raise PipelineError(
                f"stage {stage}: {port.name} of shape {list(port.shape)} is computed from how many sequences there are "
                "(such as torch.arange(len(x))), so that those of nano-batches do not make up the whole microbatch's: "
                f"give it to the pipeline as an argument, {_WHOLE}"
            )


def _output(forward: StageGraph, name: str) -> fx.Node:
    nodes = dict(zip((port.name for port in forward.outputs), output_nodes(forward.graph), strict=True))
    found: fx.Node = nodes[name]
    return found


def _made_from_batch(forward: StageGraph, batched: AbstractSet[str]) -> set[fx.Node]:
    """The nodes whose values depend on the batch, or on random numbers."""
    inputs = zip(forward.inputs, input_nodes(forward.graph), strict=True)
    made = {node for port, node in inputs if port.name in batched}
    for node in body(forward.graph):
        from_batch = not is_made_anew(node) and any(source in made for source in node.all_input_nodes)
        if from_batch or traits(node).random:
            made.add(node)
    return made


def _value(forward: StageGraph, node: fx.Node) -> Any:
    """The value of a node that does not depend on the batch; what parameters have does not matter.

    None where that cannot be told without other ranks.
    """
    wanted, pending = set[fx.Node](), [node]
    while pending:
        one = pending.pop()
        if one not in wanted and one.op != "placeholder":
            wanted.add(one)
            pending += [] if is_made_anew(one) else one.all_input_nodes
    values: dict[fx.Node, Any] = {}

    def given(source: fx.Node) -> Any:
        return values[source] if source in values else _example(source)

    with torch.no_grad():
        for each in forward.graph.nodes:
            if each.op == "get_attr" and each in wanted:
                values[each] = forward.attributes[str(each.target)]
            elif each in wanted:
                known = traits(each)
                if known.launch or known.wait or known.fence:
                    return None
                values[each] = each.target(*fx.map_arg(each.args, given), **fx.map_arg(each.kwargs, given))
    return given(node)


def _example(node: fx.Node) -> Any:
    """Some value that a node may have."""
    fake = meta.value(node)
    if not isinstance(fake, torch.Tensor):
        return fake
    return torch.ones(fake.shape, dtype=fake.dtype, device=fake.device)


def _same(whole: Any, parts: Sequence[Any], dim: int | None) -> bool:
    if whole is None or any(part is None for part in parts):
        return True
    if dim is not None:
        parts = [torch.cat(list(parts), dim)]
    return all(_are_close(whole, part) for part in parts)


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one.double(), other.double(), rtol=1e-4, equal_nan=True)
