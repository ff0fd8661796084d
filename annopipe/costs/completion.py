"""Wait again for a launch that the user declared (``ap.register_comm``), with the waits of its graph.

A declared wait may take several results of its launch, and other values beside them, so that repeating a transfer
means to run the graph's own waits on what the repeated launch returned.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from annopipe.graphs.ops import is_declared, is_getitem, launch_of, traits
from annopipe.graphs.stage_graph import body

__all__ = ["Completion", "declared_waits", "made_of"]


@dataclasses.dataclass(frozen=True)
class Completion:
    """Runs the waits that the user declared for a launch, on what a repetition of it returned.

    values: what the run's nodes yielded; the waits may take more than the launch's results.
    """

    launch: fx.Node
    waits: tuple[fx.Node, ...]
    values: Mapping[fx.Node, Any]

    def __call__(self, launched: Any) -> None:
        """Wait for ``launched``, which a call of the launch's operator returned."""
        made = {self.launch: launched}
        for node in made_of(self.waits):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: made[n] if n in made else self.values[n])
            made[node] = node.target(*args, **kwargs)  # type: ignore[operator]


def declared_waits(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By launch: its waits, where these are not PyTorch's own operator."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in body(graph):
        launch = launch_of(node) if is_declared(node) else None
        if launch is not None:
            found.setdefault(launch, []).append(node)
    return found


def made_of(waits: Sequence[fx.Node]) -> list[fx.Node]:
    """The waits of one launch, and the items and views of its results that they take, in program order."""
    found: dict[fx.Node, None] = {}

    def visit(node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if is_getitem(source) or traits(source).view:
                visit(source)
        found[node] = None

    for wait in waits:
        visit(wait)
    return list(found)
