"""From a traced joint graph, whose inputs and outputs have positions, to a stage graph, whose have names."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from annopipe.errors import CaptureError
from annopipe.graphs.arguments import Guard
from annopipe.graphs.calling import INNER
from annopipe.graphs.capture import Described, JointGraph
from annopipe.graphs.meta import value
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph
from annopipe.graphs.stage_graphs import LOSS

__all__ = ["Names", "described"]


class Names:
    """What the positions and tensors of a trace are called.

    Args:
        module: its parameters and buffers; tied ones share the name that comes first.
        arguments: paths of the tensor arguments.  outputs: "loss" and the paths of the tensor outputs.
    """

    def __init__(self, module: nn.Module, arguments: Sequence[str], outputs: Sequence[str]) -> None:
        self._arguments = arguments
        self._outputs = outputs
        self.canonical: dict[str, str] = {}
        first: dict[int, str] = {}
        for tensors in (module.named_parameters, module.named_buffers):
            for name, tensor in tensors(remove_duplicate=False):
                self.canonical[name] = first.setdefault(id(tensor), name)

    def input_port(self, node: fx.Node, what: Described) -> Port:
        """The port of a placeholder.

        Raises:
            CaptureError: it stands for something that no stage can have.
        """
        fake, of = value(node), what.of
        if what.kind in ("param", "buffer"):
            name = self._own(what)
            return Port.of("param" if what.kind == "param" else "buffer", self.canonical[name], fake, label=name)
        if what.kind == "input":
            return Port.of("input", self._arguments[int(what.target)], fake)
        if what.kind == "tangent" and of is not None and of.kind == "output":
            return Port.of("tangent", self._outputs[int(of.target)], fake)
        if what.kind == "tangent" and of is not None and of.of is not None:
            raise self._mutation_error(of.of)
        if what.kind == "base" and of is not None:
            raise CaptureError(
                f"{self._called(of)} shares memory with another one, and forward updates one of them in place: "
                "give each its own memory (clone), or register the whole and take views in forward"
            )
        raise CaptureError(f"the traced graph has an input that annopipe does not support: {what}")

    def result_port(self, node: fx.Node, what: Described) -> Port:
        """The port of a result.

        Raises:
            CaptureError: it stands for something that no stage can have, such as a changed parameter.
        """
        fake, of = value(node), what.of
        if what.kind == "output":
            name = self._outputs[int(what.target)]
            if name == LOSS:
                return Port.of("loss", "", fake)
            return dataclasses.replace(Port.of("output", name, fake), name=name)
        if what.kind == "grad" and of is not None and of.kind == "input":
            return Port.of("input_grad", self._arguments[int(of.target)], fake)
        if what.kind == "grad" and of is not None and of.kind == "param":
            return Port.of("param_grad", self.canonical[self._own(of)], fake, label=self._own(of))
        if what.kind == "mutation" and of is not None and of.kind == "buffer":
            return Port.of("buffer_update", self.canonical[self._own(of)], fake, label=self._own(of))
        if what.kind == "mutation" and of is not None:
            raise self._mutation_error(of)
        raise CaptureError(f"the traced graph has an output that annopipe does not support: {what}")

    def _own(self, what: Described) -> str:
        return str(what.target).removeprefix(f"{INNER}.")

    def _called(self, what: Described) -> str:
        if what.kind == "input":
            return f"argument {self._arguments[int(what.target)]}"
        return f"{'parameter' if what.kind == 'param' else 'buffer'} {self._own(what)}"

    def _mutation_error(self, changed: Described) -> CaptureError:
        if changed.kind == "buffer":
            return CaptureError(
                f"forward updates {self._called(changed)} with a value that requires grad: "
                "update it under torch.no_grad()"
            )
        return CaptureError(
            f"forward changes {self._called(changed)} in place: a stage may only update its buffers; "
            "make it a buffer, or work on a copy"
        )


def described(joint: JointGraph, names: Names, guards: Sequence[Guard]) -> StageGraph:
    """The joint graph as a stage graph. Gradients that are always None are left out.

    Raises:
        CaptureError: an input or a result stands for something that no stage can have.
    """
    graph = joint.module.graph
    inputs = [names.input_port(node, what) for node, what in joint.inputs]
    returned = graph.output_node().args[0]
    results: list[tuple[Port, fx.Node]] = []
    for node, (_, what) in zip(returned, joint.outputs, strict=True):  # type: ignore[arg-type]
        if isinstance(node, fx.Node):
            results.append((names.result_port(node, what), node))
    graph.output_node().args = (tuple(node for _, node in results),)
    graph.lint()
    found = {node.target: _attribute(joint.module, str(node.target)) for node in graph.find_nodes(op="get_attr")}
    attributes = {str(name): attribute for name, attribute in found.items()}
    return StageGraph(graph, inputs, [port for port, _ in results], attributes=attributes, guards=guards)


def _attribute(module: fx.GraphModule, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found
