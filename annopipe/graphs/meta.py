"""The only module that touches ``node.meta``: typed access to what tracing and annopipe write there.

Keys that PyTorch writes: ``val`` (the fake value), ``custom`` (annotations), ``desc`` (what an AOT input or output is),
``partitioner_tag`` (which side of the joint graph an op was traced on), ``seq_nr`` (the autograd node that an op made
or ran in), ``nn_module_stack`` (of front ends that keep one), ``recompute`` and ``ac_graph_id`` (activation
checkpointing), ``unbacked_bindings`` (sizes that the op reads from data), ``stack_trace``, ``example_value`` (Dynamo's
``val``). Ours: ``annopipe`` holds one ``Placement``, ``annopipe_declaration`` one ``Declaration``;
``annopipe_computes`` is set on calls of functions that passes have made, and ``annopipe_shares`` where one of them runs
in place of other nodes.
"""

import contextlib
import dataclasses
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from annopipe.annotate import KIND_KEY, LANE_KEY, REGION_KEY, STREAM_KEY
from annopipe.errors import GraphError
from annopipe.graphs.declared_ops import Declaration
from annopipe.graphs.module_paths import MODULE_KEY

__all__ = [
    "Placement",
    "annotate_module_path",
    "custom_tags",
    "declaration",
    "example",
    "group",
    "is_number",
    "is_traced_in_backward",
    "is_traced_in_forward",
    "key",
    "makes_sizes",
    "mark_computation",
    "mark_recompute",
    "marked",
    "marked_computation",
    "module_path",
    "placed",
    "placement",
    "recompute_group",
    "sequence_number",
    "set_declaration",
    "set_placement",
    "set_shares",
    "set_tag",
    "set_value",
    "shares",
    "size_bytes",
    "stack",
    "stands_in",
    "tag_kind",
    "tag_lane",
    "tag_like",
    "tag_region",
    "tag_rule",
    "tag_stream",
    "value",
]

_PLACEMENT = "annopipe"
_DECLARATION = "annopipe_declaration"
_COMPUTES = "annopipe_computes"
_SHARES = "annopipe_shares"
_RULE = "annopipe_rule"
_MODULE_FQN = "module_fqn"  # torchtitan's annotation
_SELF = re.compile(r"^(L\['self'\]|self)\.?")
_ITEM = re.compile(r"(?:\._modules)?\[['\"]?(\w+)['\"]?\]")
_POLICY = "recompute"
_GROUP = "ac_graph_id"
_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where a node belongs.

    region: full path, "" when the graph has no tags at all.  kind: compute, launch, wait or host.
    lane: the side of a multiplexed graph and the nano-batch, "F", "0", "F0" or "".
    phase: forward, input_grad, weight_grad, recompute or other.  rule: how the region was assigned.
    key: the node's name in the graph it was first placed in, prefixed by its lane; costs are looked up by it.
    """

    region: str
    kind: str
    lane: str
    phase: str
    rule: str
    key: str


def custom_tags(node: fx.Node) -> dict[str, Any]:
    """Annotations of ``torch.fx.traceback.annotate``; empty when there are none. Never mutate it: copies share it."""
    return node.meta.get("custom") or {}


def tag_region(node: fx.Node) -> str:
    """The region path that tags gave the node, or ""."""
    return str(custom_tags(node).get(REGION_KEY, ""))


def tag_kind(node: fx.Node) -> str:
    """Returns "comm" inside ``ap.comm``, "compute" inside ``ap.region``, "" outside."""
    return str(custom_tags(node).get(KIND_KEY, ""))


def tag_rule(node: fx.Node) -> str:
    """How the node got its tag: "tag", or the rule that made one from what other code says about it."""
    return str(custom_tags(node).get(_RULE, "tag"))


def set_tag(node: fx.Node, region: str, kind: str, rule: str) -> None:
    """Tag a node as ``ap.region`` or ``ap.comm`` would have, and record by which rule."""
    node.meta["custom"] = {**custom_tags(node), REGION_KEY: region, KIND_KEY: kind, _RULE: rule}


def module_path(node: fx.Node) -> str:
    """The dotted path of the innermost module whose forward made the node, or ""."""
    custom = custom_tags(node)
    if path := custom.get(_MODULE_FQN) or custom.get(MODULE_KEY):
        return str(path)
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(stack.values())), "")
    return _ITEM.sub(r".\1", _SELF.sub("", path))


def annotate_module_path(node: fx.Node) -> None:
    """Write the node's module path beside its tags, from where it reaches backward nodes as these do."""
    if path := module_path(node):
        node.meta["custom"] = {**custom_tags(node), MODULE_KEY: path}


def sequence_number(node: fx.Node) -> int | None:
    """The number that a forward node shares with the backward nodes of its autograd function."""
    number = node.meta.get("seq_nr")
    return None if number is None else int(number)


def tag_lane(node: fx.Node) -> str:
    """The nano-batch of the node as text, or ""."""
    lane = custom_tags(node).get(LANE_KEY)
    return "" if lane is None else str(lane)


def tag_stream(node: fx.Node) -> str:
    """The CUDA stream that the node's region is marked for, or ""."""
    return str(custom_tags(node).get(STREAM_KEY, ""))


def is_traced_in_forward(node: fx.Node) -> bool:
    """Whether the tracer saw the op while the module's forward ran; recomputed copies in a backward keep this tag."""
    return node.meta.get("partitioner_tag") == "is_forward"


def is_traced_in_backward(node: fx.Node) -> bool:
    """Whether the tracer saw the op while autograd ran."""
    return node.meta.get("partitioner_tag") == "is_backward"


@contextlib.contextmanager
def marked(current: dict[str, Any], group: int, *, keep_policy: bool) -> Iterator[None]:
    """While it is open, nodes that are traced belong to a checkpointed group.

    Args:
        current: the meta that tracing gives to new nodes.
        keep_policy: leave the policy as it is, if there is one.
    """
    before = {key: current[key] for key in (_GROUP, _POLICY) if key in current}
    current[_GROUP] = group
    if not keep_policy or _POLICY not in current:
        current[_POLICY] = CheckpointPolicy.PREFER_RECOMPUTE
    try:
        yield
    finally:
        for key in (_GROUP, _POLICY):
            current.pop(key, None)
        current.update(before)


def mark_recompute(node: fx.Node, group: int, *, again: bool) -> None:
    """Put a node into a group whose values a backward computes again, or, of this node, takes from the forward."""
    node.meta[_GROUP] = group
    node.meta[_POLICY] = CheckpointPolicy.PREFER_RECOMPUTE if again else CheckpointPolicy.MUST_SAVE


def mark_computation(node: fx.Node) -> None:
    """Say of a call of a function that a pass made that it computes, and does nothing else."""
    node.meta[_COMPUTES] = True


def marked_computation(node: fx.Node) -> bool:
    """Whether a pass has said that the node computes, and does nothing else."""
    return bool(node.meta.get(_COMPUTES))


def set_shares(node: fx.Node, by_key: Mapping[str, float]) -> None:
    """Say in place of which nodes, by key, a call runs, and what share of its time is each one's."""
    node.meta[_SHARES] = by_key


def stands_in(node: fx.Node) -> bool:
    """Whether the node runs in place of others."""
    return _SHARES in node.meta


def shares(node: fx.Node) -> Mapping[str, float]:
    """Whose time the node's is, by key, and which share of it: its own, unless it runs in place of others."""
    return node.meta.get(_SHARES) or {key(node): 1.0}


def group(node: fx.Node) -> int | None:
    """The checkpointed group of an operation, or None outside of checkpoints."""
    return node.meta.get(_GROUP)


def is_number(node: fx.Node) -> bool:
    """Whether the node's value is a number, such as a size."""
    return isinstance(value(node), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def recompute_group(node: fx.Node) -> int | None:
    """The checkpointed group of an operation that its policy lets a backward compute again, or None."""
    return node.meta.get(_GROUP) if node.meta.get(_POLICY) in _AGAIN else None


def makes_sizes(node: fx.Node) -> bool:
    """Whether the operation reads a size from data, as ``nonzero`` does."""
    return bool(node.meta.get("unbacked_bindings"))


def stack(node: fx.Node) -> list[traceback.FrameSummary]:
    """The lines of source that made the node, outermost first; empty when they are not known."""
    text = node.meta.get("stack_trace") or ""
    found = re.findall(r'File "(.*?)", line (\d+), in (.*)\n *(.*)', text)
    return [traceback.FrameSummary(file, int(line), name, line=code) for file, line, name, code in found]


def value(node: fx.Node) -> Any:
    """The fake value of a node (tensor, symbolic number, tuple of them), or None."""
    return node.meta.get("val")


def example(node: fx.Node) -> Any:
    """The fake value of a node of a graph that Dynamo captured, or None."""
    return node.meta.get("example_value")


def set_value(node: fx.Node, fake: Any) -> None:
    """Record the fake value of a node that a pass made."""
    node.meta["val"] = fake


def placement(node: fx.Node) -> Placement | None:
    """The node's placement, or None before regions are assigned."""
    return node.meta.get(_PLACEMENT)


def placed(node: fx.Node) -> Placement:
    """The node's placement.

    Raises:
        GraphError: regions have not been assigned yet.
    """
    at = placement(node)
    if at is None:
        raise GraphError(f"node {node.name} has no region yet: call annopipe.graphs.regions.place on its graph first")
    return at


def set_placement(node: fx.Node, place: Placement) -> None:
    """Record the node's placement."""
    node.meta[_PLACEMENT] = place


def key(node: fx.Node) -> str:
    """What its cost is looked up by: the placement's key; its name before regions are assigned."""
    at = placement(node)
    return node.name if at is None else at.key


def declaration(node: fx.Node) -> Declaration | None:
    """What was declared of the node's operator when it was traced; None before that is noted."""
    return node.meta.get(_DECLARATION)


def set_declaration(node: fx.Node, said: Declaration) -> None:
    """Note what is declared of the node's operator."""
    node.meta[_DECLARATION] = said


def tag_like(node: fx.Node, other: fx.Node, fake: Any) -> None:
    """Give a node that a pass made a fake value, and the tags and the side of another one."""
    kept = ("custom", "partitioner_tag", _DECLARATION)
    node.meta = {key: other.meta[key] for key in kept if key in other.meta}
    set_value(node, fake)


def size_bytes(node: fx.Node) -> int | None:
    """Bytes of a node's tensor; None when it has none or its size is known only at run time."""
    fake = value(node)
    if not isinstance(fake, torch.Tensor):
        return None
    count = fake.numel()
    return int(count) * fake.element_size() if isinstance(count, int) else None
