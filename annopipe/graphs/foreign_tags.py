"""Tags that other code wrote with ``torch.fx.traceback.annotate`` become regions, through the tables of this file.

needs       a freshly traced joint graph whose nodes know their module (``annopipe.graphs.module_paths``).
does        gives a region and a kind to nodes that have no tag of ours.
guarantees  a tag of ours wins; no dependency, name or value changes; backward nodes get what their forward operation
            got.

    custom {"EP": "dispatch"} in module layers.3.moe     ->     region "layers3/moe/dispatch", kind "comm"

Upstream's tags say the same in every layer, so the module's path up to its first number goes in front. Upstream tags
whole expert layers "compute": in there, what belongs to a submodule of ``PARTS`` has that name, what the layer does
before its first dispatch is "router", behind its last combine "unpermute", and the rest is "experts".

Upstream has no tag for attention, and autoparallel none for the experts. So in a graph without any tag of ours, nodes
in a submodule of ``MODULES`` get its region (rule "module"), a feed-forward with a dispatch in its layer counts as
tagged "compute", and a norm joins what follows it in its layer. Where somebody has used our tags, what these leave out
is left out on purpose, so modules give no region there.

Not regions, hence ignored: "compile_with_inductor", "pp_stage", "ac_region_id"; "module_fqn" is read as the path.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from torch import fx

from annopipe.annotate import check_name
from annopipe.errors import GraphError
from annopipe.graphs import meta

__all__ = ["MODULES", "OUTER_MODULES", "PARTS", "UPSTREAM_TAGS", "ForeignTag", "checked_tags", "translate"]

_EXPERTS = "experts"
_FEED_FORWARD = ("mlp", "moe")


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignTag:
    """One line of the mapping: nodes annotated with ``{key: value}`` are in ``region``, which is of ``kind``.

    Pass ``tags=(*ap.UPSTREAM_TAGS, ap.ForeignTag(...))`` to ``ap.trace``; of several that fit, the first one counts.

    Args:
        value: what the annotation holds, as text.
        kind: "comm" for regions whose purpose is communication, or "compute".

    Raises:
        GraphError: a region name or kind that tags cannot have.

    >>> ForeignTag("my_tag", "a2a_there", "dispatch", "comm").region
    'dispatch'
    """

    key: str
    value: str
    region: str
    kind: str = "compute"

    def __post_init__(self) -> None:
        """Refuse what no tag could say."""
        check_name(self.region)
        if self.kind not in ("comm", "compute"):
            raise GraphError(f"foreign tag {self.key}={self.value}: kind {self.kind!r} is neither 'comm' nor 'compute'")


# torchtitan's graph trainer writes EP and EP_token_exchange, autoparallel comm_region.
UPSTREAM_TAGS = (
    ForeignTag("EP_token_exchange", "dispatch", "moe/dispatch", "comm"),
    ForeignTag("EP_token_exchange", "combine", "moe/combine", "comm"),
    ForeignTag("comm_region", "dispatch", "moe/dispatch", "comm"),
    ForeignTag("comm_region", "token_dispatch", "moe/dispatch", "comm"),
    ForeignTag("comm_region", "combine", "moe/combine", "comm"),
    ForeignTag("comm_region", "token_combine", "moe/combine", "comm"),
    ForeignTag("EP", "dispatch", "moe/dispatch", "comm"),
    ForeignTag("EP", "combine", "moe/combine", "comm"),
    ForeignTag("EP", "compute", "moe/experts"),
)
# Regions of untagged nodes by the name of a submodule of a layer; the outermost counts.
MODULES: Mapping[str, str] = {
    **dict.fromkeys(("attention", "self_attention", "attn", "self_attn"), "attention"),
    **dict.fromkeys(("mlp", "ffn", "feed_forward", "feed"), "mlp"),
    "moe": "moe",
}
# The same for modules that are in no layer.
OUTER_MODULES: Mapping[str, str] = {
    **MODULES,
    **dict.fromkeys(("embed", "embed_tokens", "tok_embeddings"), "embed"),
    **dict.fromkeys(("head", "lm_head", "output"), "head"),
}
# Regions of nodes that are tagged as an expert layer's computation, by the name of a submodule.
PARTS: Mapping[str, str] = {
    **dict.fromkeys(("router", "gate"), "router"),
    **dict.fromkeys(("shared", "shared_expert", "shared_experts"), "shared"),
    _EXPERTS: _EXPERTS,
}
_NUMBERED = re.compile(r"\d+|(block|layer|stage)s?_?\d+")
_UNFIT = re.compile(r"[^\w\-\[\]]")


def checked_tags(tags: Iterable[ForeignTag]) -> tuple[ForeignTag, ...]:
    """The mapping as a tuple.

    Raises:
        GraphError: it holds something else than ``ForeignTag``.
    """
    found = tuple(tags)
    for tag in found:
        if not isinstance(tag, ForeignTag):
            raise GraphError(f"tags holds {tag!r}: give ap.ForeignTag(key, value, region, kind), or () for none")
    return found


def translate(graph: fx.Graph, tags: Sequence[ForeignTag]) -> None:
    """Write the regions that ``tags`` and modules give to the nodes of ``graph``, in place, as tags of our own."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    forward = [node for node in nodes if not meta.is_traced_in_backward(node)]
    found = _Regions(forward, tags, by_module=not any(meta.tag_region(node) for node in nodes)).found
    by_sequence: dict[int, fx.Node] = {}
    for node in forward:  # the first with a number is the one that autograd recorded
        if (number := meta.sequence_number(node)) is not None:
            by_sequence.setdefault(number, node)
    for node in nodes:
        source = node
        if meta.is_traced_in_backward(node):
            if not meta.custom_tags(node):
                continue  # a gradient sum
            number = meta.sequence_number(node)
            source = node if number is None else by_sequence.get(number, node)
        region = found.get(source)
        if region is not None and not meta.tag_region(node):
            meta.set_tag(node, *region)


Region = tuple[str, str, str]  # path, kind, rule


class _Regions:
    """The regions of the forward's nodes, given in program order.

    Attributes:
        found: by node; those that neither a tag nor a module places are not in it.
    """

    def __init__(self, nodes: Sequence[fx.Node], tags: Sequence[ForeignTag], *, by_module: bool) -> None:
        self._order = {node: number for number, node in enumerate(nodes)}
        self._tags = tags
        self._first_dispatch: dict[tuple[str, str], int] = {}  # by layer and nano-batch
        self._last_combine: dict[tuple[str, str], int] = {}
        self.found: dict[fx.Node, Region] = {}
        tagged = [(node, tag) for node in nodes if (tag := self._tag_of(node)) is not None]
        for node, tag in tagged:
            if _last(tag.region) == "dispatch":
                self._first_dispatch.setdefault(_layer_and_lane(node), self._order[node])
            elif _last(tag.region) == "combine":
                self._last_combine[_layer_and_lane(node)] = self._order[node]
        for node, tag in tagged:
            region = tag.region
            if _last(region) == _EXPERTS:
                region = region.removesuffix(_EXPERTS) + self._part(node)
            self.found[node] = (_joined(_split(node)[0], region), tag.kind, "foreign tag")
        if by_module:
            self._place_by_module(nodes)

    def _tag_of(self, node: fx.Node) -> ForeignTag | None:
        custom = meta.custom_tags(node)
        return next((tag for tag in self._tags if tag.key in custom and str(custom[tag.key]) == tag.value), None)

    def _part(self, node: fx.Node) -> str:
        """What of an expert layer's computation the node is."""
        _, inner = _split(node)
        if named := _named(inner, PARTS):
            return named
        layer, mine = _layer_and_lane(node), self._order[node]
        if mine < self._first_dispatch.get(layer, -1):
            return "router"
        return "unpermute" if mine > self._last_combine.get(layer, len(self._order)) else _EXPERTS

    def _place_by_module(self, nodes: Sequence[fx.Node]) -> None:
        following: dict[str, str] = {}  # by layer: the region that comes next, without what is inside of it
        for node in reversed(nodes):
            layer, inner = _split(node)
            named = _named(inner, MODULES if layer else OUTER_MODULES)
            if node not in self.found:
                if named in _FEED_FORWARD and _layer_and_lane(node) in self._first_dispatch:
                    self.found[node] = (_joined(layer, f"moe/{self._part(node)}"), "compute", "module")
                elif named:
                    self.found[node] = (_joined(layer, named), "compute", "module")
                elif inner and "norm" in inner[0].lower() and layer in following:
                    self.found[node] = (following[layer], "compute", "module")
            if node in self.found:
                inside = self.found[node][0].removeprefix(f"{layer}/")
                following[layer] = _joined(layer, inside.partition("/")[0])


def _layer_and_lane(node: fx.Node) -> tuple[str, str]:
    return _split(node)[0], meta.tag_lane(node)


def _split(node: fx.Node) -> tuple[str, list[str]]:
    """The node's layer as a region path ("model/layers3", "" if there is none), and the modules inside of it."""
    names = meta.module_path(node).split(".")
    for number, name in enumerate(names):
        if _NUMBERED.fullmatch(name):
            outer = [*names[:number], name]
            if name.isdigit() and number:
                outer = [*names[: number - 1], names[number - 1] + name]
            return "/".join(_UNFIT.sub("_", part) for part in outer), names[number + 1 :]
    return "", [name for name in names if name]


def _last(region: str) -> str:
    return region.rpartition("/")[2]


def _named(names: Iterable[str], table: Mapping[str, str]) -> str:
    return next((table[name] for name in names if name in table), "")


def _joined(layer: str, region: str) -> str:
    return f"{layer}/{region}" if layer else region
