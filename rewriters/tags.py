"""Which expressions are tags: ours, and those of ``torch.fx.traceback``."""

import dataclasses

import libcst as cst

from rewriters.names import Imports, dotted, string_value

__all__ = ["ANNOTATE", "ANNOTATE_FN", "OWN_CALLS", "Tag", "is_annotate", "item_calls", "own_tag"]

OWN_CALLS = ("region", "comm", "nano_batch")
ANNOTATE, ANNOTATE_FN = "torch.fx.traceback.annotate", "torch.fx.traceback.annotate_fn"


@dataclasses.dataclass(frozen=True, slots=True)
class Tag:
    """A tag of ours: ``annopipe.comm("moe/dispatch")``.

    Args:
        call: region, comm or nano_batch.
        path: the name it is given; "" if that is no plain string.
        node: the call.
    """

    call: str
    path: str
    node: cst.Call

    @property
    def region(self) -> str:
        """The innermost level of the path."""
        return self.path.rpartition("/")[2]


def own_tag(node: cst.BaseExpression, imports: Imports) -> Tag | None:
    """The tag that an expression is, if it is one of ours.

    >>> imports = Imports({"ap": "annopipe"})
    >>> own_tag(cst.parse_expression('ap.comm("moe/dispatch")'), imports).region
    'dispatch'
    """
    if not isinstance(node, cst.Call):
        return None
    module, _, call = imports.qualified(dotted(node.func)).rpartition(".")
    if call not in OWN_CALLS or module not in ("annopipe", "annopipe.annotate"):
        return None
    return Tag(call, (string_value(node.args[0].value) if node.args else None) or "", node)


def is_annotate(node: cst.BaseExpression, imports: Imports, name: str = ANNOTATE) -> bool:
    """Whether an expression is a call of PyTorch's ``annotate`` (or ``annotate_fn``)."""
    return isinstance(node, cst.Call) and imports.qualified(dotted(node.func)) == name


def item_calls(node: cst.With | cst.FunctionDef) -> list[cst.BaseExpression]:
    """What a ``with`` statement enters, or what decorates a function."""
    if isinstance(node, cst.With):
        return [item.item for item in node.items]
    return [decorator.decorator for decorator in node.decorators]
