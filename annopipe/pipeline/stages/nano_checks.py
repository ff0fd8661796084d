"""Whether a stage can run as nano-batches: what its graphs for the parts of a microbatch have to be beside the whole's.

Only what the graphs show can be checked. What a stage computes from all sequences of a microbatch together without
handing it on (a capacity of experts, a division by the batch size) is computed from those of one nano-batch.
"""

from collections.abc import Sequence

from torch import fx

from annopipe.errors import PipelineError
from annopipe.graphs import meta
from annopipe.graphs.stage_graph import body
from annopipe.graphs.stage_graphs import AUXILIARY_LOSS, StageGraphs

__all__ = ["batch_dim", "check_alike"]

_WHOLE = "run this stage on whole microbatches (2F0 in the schedule, and not 2F0/2)"


def batch_dim(
    what: str, whole: Sequence[int | str], parts: Sequence[Sequence[int | str]], lengths: Sequence[int]
) -> int | None:
    """The dimension in which a value is the batch; None for a value that is the same for every part.

    Args:
        what: the value, for messages.
        whole, parts: its shape for a whole microbatch, and for each nano-batch.
        lengths: how many sequences each nano-batch has.

    Raises PipelineError for a value of which that cannot be told.

    >>> batch_dim("x", (5, 7, 2), [(5, 4, 2), (5, 3, 2)], (4, 3)), batch_dim("x", (5,), [(5,), (5,)], (4, 3))
    (1, None)
    """
    shapes = f"of shape {list(whole)} for a microbatch, {' and '.join(str(list(part)) for part in parts)} for its parts"
    if not all(isinstance(extent, int) for shape in (whole, *parts) for extent in shape):
        raise PipelineError(
            f"{what} has a size that depends on data, and cannot be put together from nano-batches: {_WHOLE}, or hand "
            "on a value of a fixed size"
        )
    same_rank = all(len(part) == len(whole) for part in parts)
    differing = [d for d in range(len(whole)) if same_rank and any(part[d] != whole[d] for part in parts)]
    if same_rank and not differing:
        return None
    if len(differing) != 1 or [part[differing[0]] for part in parts] != list(lengths):
        sequences = " and ".join(map(str, lengths))
        raise PipelineError(
            f"{what} is {shapes}: with nano-batches of {sequences} sequences, one dimension has to have their lengths, "
            "and no other may depend on them; give the batch a dimension of its own, [batch, tokens, width] and not "
            f"[batch * tokens, width], or {_WHOLE}"
        )
    return differing[0]


def check_alike(stage: int, whole: StageGraphs, parts: Sequence[StageGraphs], auxiliary: str | None) -> None:
    """Raises PipelineError for graphs of nano-batches that have something else to them than those of the whole.

    Args:
        stage: its number.
        whole, parts: its graphs for a whole microbatch, and for each nano-batch.
        auxiliary: how auxiliary losses of nano-batches count; None where there must be none.
    """
    updated = next((port.source for port in whole.forward.outputs if port.role == "buffer_update"), None)
    if updated is not None:
        raise PipelineError(
            f"stage {stage} updates its buffer {updated}, and of two nano-batches that run together one update would "
            f"be lost: {_WHOLE}, or update the buffer between steps"
        )
    if auxiliary is None and any(AUXILIARY_LOSS in graphs.layout.losses for graphs in (whole, *parts)):
        raise PipelineError(
            f"stage {stage} calls ap.auxiliary_loss, and such a loss need not be a sum over sequences (a router's "
            f"balance loss is none), so that those of nano-batches do not make up the microbatch's: {_WHOLE}, or train "
            'with the loss of each nano-batch instead: Pipeline(nano_auxiliary="mean"), weighed by their lengths, or '
            '"sum"'
        )
    mixing = next((node for node in body(whole.forward.graph) if _is_batch_norm(node)), None)
    if mixing is not None:
        raise PipelineError(
            f"stage {stage} has a batch norm ({mixing.name}), whose statistics are of all sequences of a microbatch: "
            f"{_WHOLE}"
        )
    for part in parts:
        _check_constants(stage, whole, part)
    expected = _facts_of(whole)
    for part in parts:
        for what, found in _facts_of(part).items():
            if found != expected[what]:
                different = ", ".join(sorted(found ^ expected[what]))
                raise PipelineError(
                    f"stage {stage} has other {what} for a part of a microbatch than for the whole ({different}): its "
                    f"forward must not depend on how many sequences there are; or {_WHOLE}"
                )


def _check_constants(stage: int, whole: StageGraphs, part: StageGraphs) -> None:
    """Raises PipelineError for an argument that is no tensor, and another one for a nano-batch."""
    known = {guard.path: guard.text for guard in whole.arguments.guards}
    for guard in part.arguments.guards:
        if guard.text != known[guard.path]:
            raise PipelineError(
                f"stage {stage} is given {guard.path}={known[guard.path]} with a microbatch, and {guard.text} with a "
                "part of it: how many sequences there are cannot be handed from stage to stage; have each take it from "
                f"its tensors (len(x)), or {_WHOLE}"
            )


def _is_batch_norm(node: fx.Node) -> bool:
    """Whether it has statistics of a batch; one of an instance norm sees a single row."""
    if "batch_norm" not in str(node.target) or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given.get("training") is True and meta.value(node.args[0]).shape[0] != 1


def _facts_of(graphs: StageGraphs) -> dict[str, set[str]]:
    """What has to be the same for the parts of a microbatch as for the whole."""
    gathered = [port for port in graphs.forward.inputs if port.role == "unsharded"]
    results = graphs.backward.outputs if graphs.backward is not None else ()
    wanted = [port for port in results if port.role in ("param_grad", "unreduced", "input_grad")]
    taken = [port for port in graphs.forward.inputs if port.role == "input"]
    own = set(graphs.arguments.paths)
    return {
        "outputs": set(graphs.layout.tensors),
        "parameters": {port.name for port in (*graphs.bound_ports(), *gathered)},
        "inputs": {port.name for port in taken if port.source in own},
        "gradients": {port.name for port in wanted if port.role != "input_grad" or port.source in own},
    }
