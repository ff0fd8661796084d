"""The only module that touches ``node.meta``: typed access to what tracing and annopipe write there.

Keys that PyTorch writes: ``val`` (the fake value), ``custom`` (annotations), ``desc`` (what an AOT input or output is),
``partitioner_tag`` (which side of the joint graph an op was traced on), ``seq_nr`` (the autograd node that an op made
or ran in), ``nn_module_stack`` (of front ends that keep one). Ours: ``annopipe`` holds one ``Placement``,
``annopipe_declaration`` one ``Declaration``.
"""

import dataclasses
import re
from typing import Any

import torch
from torch import fx

from annopipe.annotate import KIND_KEY, LANE_KEY, REGION_KEY
from annopipe.errors import GraphError
from annopipe.graphs.declared_ops import Declaration
from annopipe.graphs.module_paths import MODULE_KEY

__all__ = [
    "Placement",
    "custom_tags",
    "declaration",
    "is_traced_in_backward",
    "is_traced_in_forward",
    "module_path",
    "placed",
    "placement",
    "sequence_number",
    "set_declaration",
    "set_placement",
    "set_tag",
    "set_value",
    "size_bytes",
    "tag_kind",
    "tag_lane",
    "tag_region",
    "tag_rule",
    "value",
]

_PLACEMENT = "annopipe"
_DECLARATION = "annopipe_declaration"
_RULE = "annopipe_rule"
_MODULE_FQN = "module_fqn"  # torchtitan's annotation
_SELF = re.compile(r"^(L\['self'\]|self)\.?")
_ITEM = re.compile(r"(?:\._modules)?\[['\"]?(\w+)['\"]?\]")


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


def sequence_number(node: fx.Node) -> int | None:
    """The number that a forward node shares with the backward nodes of its autograd function."""
    number = node.meta.get("seq_nr")
    return None if number is None else int(number)


def tag_lane(node: fx.Node) -> str:
    """The nano-batch of the node as text, or ""."""
    lane = custom_tags(node).get(LANE_KEY)
    return "" if lane is None else str(lane)


def is_traced_in_forward(node: fx.Node) -> bool:
    """Whether the tracer saw the op while the module's forward ran; recomputed copies in a backward keep this tag."""
    return node.meta.get("partitioner_tag") == "is_forward"


def is_traced_in_backward(node: fx.Node) -> bool:
    """Whether the tracer saw the op while autograd ran."""
    return node.meta.get("partitioner_tag") == "is_backward"


def value(node: fx.Node) -> Any:
    """The fake value of a node (tensor, symbolic number, tuple of them), or None."""
    return node.meta.get("val")


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


def declaration(node: fx.Node) -> Declaration | None:
    """What was declared of the node's operator when it was traced; None before that is noted."""
    return node.meta.get(_DECLARATION)


def set_declaration(node: fx.Node, said: Declaration) -> None:
    """Note what is declared of the node's operator."""
    node.meta[_DECLARATION] = said


def size_bytes(node: fx.Node) -> int | None:
    """Bytes of a node's tensor; None when it has none or its size is known only at run time."""
    fake = value(node)
    if not isinstance(fake, torch.Tensor):
        return None
    count = fake.numel()
    return int(count) * fake.element_size() if isinstance(count, int) else None
