"""StageGraph: an FX graph whose inputs and outputs are ports."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx

from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.arguments import Guard, check_guards
from annopipe.graphs.operators import reads_layout
from annopipe.graphs.ops import traits
from annopipe.graphs.ports import Port

__all__ = ["StageGraph", "add_input", "body", "copy_nodes", "input_nodes", "output_nodes", "refuse_compiled"]

_SOURCES = {
    **dict.fromkeys(("param", "buffer"), "parameters and buffers come from graphs.bind(module)"),
    "input": "inputs come from graphs.bind_inputs(...)",
    **dict.fromkeys(("saved", "size"), "saved values come from the result of the graph before"),
    "unsharded": "gathered parameters come from the result of graphs.unshard",
    "unreduced": "unreduced gradients come from the result of the backward graph",
    "tangent": "tangents, the gradients of the outputs, come from you",
}
_CHECKED_ROLES = frozenset({"input", "tangent"})


class StageGraph:
    """One graph of a stage: forward, backward, a part of one, or several combined.

    Call it with values by port name; extra names are ignored, so one dictionary can carry a whole microbatch:

        values = {**graphs.bind(module), **graphs.bind_inputs(x)}
        values |= graphs.forward(values)

    Attributes:
        inputs, outputs: the ports, in the order of the graph's placeholders and results.
        graph: the ``fx.Graph``. Do not edit it; passes make copies.
        guards: arguments that were not tensors when the module was traced.
        around: a context that the graph runs in; None: none.
    """

    def __init__(
        self,
        graph: fx.Graph | Callable[[], fx.Graph],
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        *,
        attributes: Mapping[str, Any] | None = None,
        guards: Sequence[Guard] = (),
        around: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.around = around
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.attributes = dict(attributes or {})
        self.guards = tuple(guards)
        self._source = graph
        for kind, ports in (("input", self.inputs), ("output", self.outputs)):
            names = [port.name for port in ports]
            if len(set(names)) != len(names):
                twice = sorted({name for name in names if names.count(name) > 1})
                raise GraphError(f"two {kind} ports have the same name: {', '.join(twice)}")

    @functools.cached_property
    def graph(self) -> fx.Graph:
        """The FX graph; built at first use when it is a combination of others."""
        return self._source() if callable(self._source) else self._source

    @functools.cached_property
    def module(self) -> fx.GraphModule:
        """The graph as a module that takes the input ports by position; its code is generated at first use."""
        return fx.GraphModule(self.attributes, self.graph)

    def copy(self) -> "StageGraph":
        """The same graph on nodes of its own, which a pass may then edit."""
        if callable(self._source):
            return self._on(self._source())
        graph, environment = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self.graph.nodes:
            if node.op != "output":
                copy_nodes(graph, [node], environment)
        graph.output(
            tuple(environment[node] if isinstance(node, fx.Node) else node for node in output_nodes(self.graph))
        )
        return self._on(graph)

    def _on(self, graph: fx.Graph) -> "StageGraph":
        return StageGraph(
            graph, self.inputs, self.outputs, attributes=self.attributes, guards=self.guards, around=self.around
        )

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """The positional arguments of ``module`` for values by port name.

        Tracing leaves out copies that the example did not need, such as ``x.contiguous()``. So where an operation reads
        memory as it lies, inputs and tangents of other strides are copied to those of the example.

        Raises:
            GraphError: a port has no value, or an input or tangent has another dtype or shape than the traced one.
            CaptureError: a guarded constant is present and differs.
        """
        if not isinstance(values, Mapping):
            raise GraphError(
                f"a stage graph is called with a mapping from port name to value, got {type(values).__name__}: "
                "graphs.forward({**graphs.bind(module), **graphs.bind_inputs(x)})"
            )
        missing = [port for port in self.inputs if port.name not in values]
        if missing:
            raise GraphError(self._without_values(missing))
        arguments = [values[port.name] for port in self.inputs]
        for index, (port, value) in enumerate(zip(self.inputs, arguments, strict=True)):
            if port.role in _CHECKED_ROLES:
                if reason := port.mismatch(value):
                    raise GraphError(f"port {port.name}: {reason}; trace again for other shapes or dtypes")
                if self._reads_layout and isinstance(value, torch.Tensor):
                    arguments[index] = port.laid_out(value)
        if self.guards:
            check_guards(self.guards, values)
        return arguments

    @functools.cached_property
    def _reads_layout(self) -> bool:
        return any(reads_layout(node.target) for node in body(self.graph))

    def _without_values(self, missing: list[Port]) -> str:
        names = ", ".join(port.name for port in missing[:5]) + (", ..." if len(missing) > 5 else "")
        sources = dict.fromkeys(_SOURCES[port.role] for port in missing)
        lanes = sorted({port.name.partition(".")[0] for port in self.inputs if not port.name.startswith(port.role)})
        hint = (
            f"; this graph has lanes: ap.into_lane(values, {lanes[0]!r}) puts a lane in front of names" if lanes else ""
        )
        return f"no value for {len(missing)} of {len(self.inputs)} input ports: {names}; {', '.join(sources)}{hint}"

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the graph without autograd and autocast; returns a value for every output port, by name.

        Raises:
            GraphError, CaptureError: as ``arguments``.
        """
        arguments = self.arguments(values)
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for device in {port.device for port in self.inputs if port.device not in ("", "meta")}:
                if torch.is_autocast_enabled(device):  # casts are nodes of the graph
                    stack.enter_context(torch.autocast(device, enabled=False))
            if self.around is not None:
                stack.enter_context(self.around())
            results = self.module(*arguments)
        return {port.name: result for port, result in zip(self.outputs, results, strict=True)}

    def port(self, name: str) -> Port:
        """The input or output port of that name.

        Raises:
            GraphError: there is none.
        """
        for port in (*self.inputs, *self.outputs):
            if port.name == name:
                return port
        raise GraphError(f"no port {name!r}; there are {', '.join(p.name for p in (*self.inputs, *self.outputs))}")

    @property
    def launch_count(self) -> int:
        """How many collectives it launches."""
        return sum(traits(node).launch for node in body(self.graph))

    def __repr__(self) -> str:
        return f"StageGraph({len(self.inputs)} inputs, {len(body(self.graph))} nodes, {len(self.outputs)} outputs)"


def body(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that compute: all but placeholders and the output."""
    return [node for node in graph.nodes if node.op not in ("placeholder", "output")]


def refuse_compiled(graph: StageGraph, what: str) -> None:
    """Raises GraphError for a graph whose stretches are compiled, and have their places."""
    if any(meta.stands_in(node) for node in graph.graph.nodes):
        raise GraphError(
            f"{what} takes a graph that is not compiled, and this one is: order the graph that it was made of, and "
            "compile the plan, ap.overlap(graph).compiled()"
        )


def input_nodes(graph: fx.Graph) -> list[fx.Node]:
    """The placeholders, in the order of the input ports."""
    return list(graph.find_nodes(op="placeholder"))


def output_nodes(graph: fx.Graph) -> tuple[Any, ...]:
    """What the graph returns, in the order of the output ports: nodes, or numbers known when it was traced."""
    returned = graph.output_node().args[0]
    return tuple(returned) if isinstance(returned, (list, tuple)) else (returned,)


def add_input(graph: fx.Graph, name: str, like: fx.Node) -> fx.Node:
    """A placeholder with the meta of ``like``; its name is ``name`` as an identifier, made unique."""
    node = graph.placeholder("".join(c if c.isalnum() else "_" for c in name))
    node.target = node.name  # FX makes names unique, not targets, and generates code with the targets
    node.meta = dict(like.meta)
    return node


def copy_nodes(graph: fx.Graph, nodes: Sequence[fx.Node], environment: dict[fx.Node, fx.Node]) -> None:
    """Copy ``nodes`` to the end of ``graph``; ``environment`` maps old to new and is extended."""
    for node in nodes:
        # As graph.node_copy, but for create_node's search of the arguments for raw symbols: a third of its time.
        copy = environment[node] = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
        copy.args = fx.node.map_arg(node.args, environment.__getitem__)
        if node.kwargs:
            copy.kwargs = fx.node.map_arg(node.kwargs, environment.__getitem__)
        copy.meta = dict(node.meta)
