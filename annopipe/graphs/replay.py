"""Run a captured graph operation by operation, so that tracing sees what eager would run.

needs       a graph as Dynamo captures it, and its inputs.
does        runs its nodes with the tags and module paths that they carry; a checkpointed call runs in place.
guarantees  ``tolist`` is the same operations as in eager; what goes wrong names the user's line, and ends what the
            graph has begun (autocast, the levels of vmap), as a ``with`` block would.
"""

import itertools
import operator
import re
from collections.abc import Iterator
from typing import Any

from torch import fx, nn

from annopipe.graphs import meta
from annopipe.graphs.checkpointing import is_checkpoint, marked_as_checkpoint, refuse_lost_gradients
from annopipe.graphs.failures import PlacedError, user_frame

__all__ = ["replay"]

# What a ``with`` block becomes, by the name of its operation: one that begins it and one that ends it, or two that set.
_BEGINS = re.compile(r"_enter_|_increment_nesting$|_hooks_disable$")
_ENDS = re.compile(r"_exit_|_decrement_nesting$|_hooks_enable$")
_SETS = re.compile(r"set_(\w+_)?(enabled|allowed)$|^_sdpa_kernel$|^_backend_from_string$")


def replay(graph_module: fx.GraphModule, module: nn.Module, *inputs: Any) -> Any:
    """The result of the graph.

    Args:
        module: whose graph it is.

    Raises:
        PlacedError: from whatever goes wrong.
    """
    parameters = {id(parameter) for parameter in module.parameters()}
    return _Replay(graph_module, parameters, itertools.count()).run(*inputs)


class _Replay(fx.Interpreter):
    def __init__(self, graph_module: fx.GraphModule, parameters: set[int], groups: Iterator[int]) -> None:
        _read_lists_at_once(graph_module.graph)
        for node in graph_module.graph.nodes:
            meta.annotate_module_path(node)
        super().__init__(graph_module)
        self.extra_traceback = False
        self._parameters = parameters
        self._groups = groups
        self._current: fx.Node | None = None

    def run(self, *inputs: Any) -> Any:  # type: ignore[override]
        """The result of the graph; when something goes wrong, what it has begun is ended."""
        try:
            return super().run(*inputs)
        except BaseException:
            self._end_blocks()
            raise

    def _end_blocks(self) -> None:
        """Run what ends or sets back behind the current node, but for blocks that begin there."""
        begun = 0
        rest = itertools.dropwhile(lambda node: node is not self._current, self.graph.nodes)
        for node in [node for node in rest if node is not self._current and node.op == "call_function"]:
            name = getattr(node.target, "__name__", "")
            if _BEGINS.search(name):
                begun += 1
            elif _ENDS.search(name) and begun:
                begun -= 1
            elif _ENDS.search(name) or _SETS.search(name):
                self.env[node] = super().run_node(node)

    def run_node(self, n: fx.Node) -> Any:
        """The value of one node. Tracebacks do not have the line that made it, so errors are told where it is."""
        self._current = n
        try:
            return super().run_node(n)
        except PlacedError:
            raise
        except Exception as error:
            raise PlacedError(user_frame(meta.stack(n))) from error

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a call, or of all operations of a checkpointed one."""
        if not is_checkpoint(target):
            return super().call_function(target, args, kwargs)
        body, *inputs = args
        refuse_lost_gradients(inputs, kwargs, self._parameters)
        with marked_as_checkpoint(body, next(self._groups)):
            return _Replay(body, self._parameters, self._groups).run(*inputs)


def _read_lists_at_once(graph: fx.Graph) -> None:
    """Have ``tolist`` unbind its tensor, as in eager; Dynamo captures it as ``x[0].item(), x[1].item(), ...``."""
    for first in graph.find_nodes(op="call_function", target=operator.getitem):
        source = first.args[0]
        reads = _reads_of_list(first)
        if not isinstance(source, fx.Node) or len(reads) < 2:  # one read may as well be an element
            continue
        with graph.inserting_before(first):
            parts = graph.call_method("unbind", (source,))
            parts.meta = dict(first.meta)
        last = parts
        for item in [read.all_input_nodes[0] for read in reads]:
            item.replace_input_with(source, parts)
            last.append(item)
            last = item


def _reads_of_list(first: fx.Node) -> list[fx.Node]:
    """The ``item()`` nodes of all elements of a one-dimensional tensor, if they follow each other."""
    source: Any = first.args[0]
    if not isinstance(source, fx.Node):
        return []
    shape: Any = getattr(meta.example(source), "shape", ())
    reads: list[fx.Node] = []
    element: Any = first
    while len(shape) == 1 and len(reads) < shape[0]:
        read = element.next
        reads_element = element.target is operator.getitem and list(element.args) == [source, len(reads)]
        if not (reads_element and read.op == "call_method" and read.target == "item" and list(element.users) == [read]):
            return []
        reads.append(read)
        element = read.next
    return reads
