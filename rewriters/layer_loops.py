"""Loops over the layers of a model, as data for the rules that change them."""

import dataclasses
from collections.abc import Iterator

import libcst as cst

from rewriters.names import dotted, target_names
from rewriters.reading import Found, Reading

__all__ = ["LAYERS", "LayerLoop", "layer_loops"]

# Members that hold the layers of a model.
LAYERS = ("layers", "blocks", "h", "decoder_layers", "encoder_layers", "transformer_layers")


@dataclasses.dataclass(frozen=True, slots=True)
class LayerLoop:
    """``for index, layer in enumerate(self.layers)``.

    Args:
        member: "layers".
        variable: what a layer is called in the loop.
        index: the variable that counts, or "".
    """

    found: Found
    loop: cst.For
    member: str
    variable: str
    index: str


def layer_loops(reading: Reading) -> Iterator[LayerLoop]:
    """The loops over layers in a file, in order."""
    for found in reading.loops:
        loop = cst.ensure_type(found.node, cst.For)
        names = list(target_names(loop.target))
        iterated, index = loop.iter, ""
        if (
            isinstance(iterated, cst.Call)
            and dotted(iterated.func) == "enumerate"
            and iterated.args
            and len(names) == 2
        ):
            index, iterated = names.pop(0), iterated.args[0].value
        if isinstance(iterated, cst.Call) and dotted(iterated.func).endswith(".values"):
            iterated = cst.ensure_type(iterated.func, cst.Attribute).value
        name = dotted(iterated).replace("[]", "")
        member = name.removeprefix("self.")
        if name.startswith("self.") and member in LAYERS and len(names) == 1:
            yield LayerLoop(found, loop, member, names[0], index)
