"""Adapter to Dynamo: capture a function as one graph of tensor operations, with what that graph takes for granted.

needs       a function that uses no globals of its own, and example arguments.
does        has Dynamo run it symbolically: nothing is computed, and nothing that the function can reach changes.
guarantees  the whole function is one graph, or an error names the user's line; earlier captures of the process have no
            influence; every Python value that the graph holds for is guarded.

The only file that imports ``torch._dynamo``. Sources: ``torch/_dynamo/convert_frame.py`` (``fullgraph_capture``),
``guards.py`` and ``side_effects.py`` there.
"""

import builtins
import contextlib
import dataclasses
import re
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._dynamo import config
from torch._dynamo.convert_frame import fullgraph_capture
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.guards import _get_closure_vars
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.utils import get_metrics_context

from annopipe.errors import AnnopipeError, CaptureError
from annopipe.graphs.failures import user_frame
from annopipe.graphs.refusals import understandable
from annopipe.graphs.source_guards import SourceGuard, SourceGuards, user_name

__all__ = ["Captured", "capture"]

_SETTINGS = {
    "assume_static_by_default": True,
    "automatic_dynamic_shapes": False,  # else the second batch size that a process sees becomes a symbol
    "capture_dynamic_output_shape_ops": True,
    "capture_scalar_outputs": True,
    "do_not_emit_runtime_asserts": True,  # AOT tracing of the captured graph makes its own
    "replay_side_effects": False,
    "side_effect_replay_policy": "warn",
    "specialize_float": True,
    "specialize_int": True,
}
_SIDE_EFFECTS = "certain side effects happened"
# By the name of Dynamo's guard: what of a value it holds for. Guards of the process's state are the graph's own nodes.
_ASPECTS = {
    **dict.fromkeys(("CONSTANT_MATCH", "CONSTANT_SUBCLASS_MATCH", "EQUALS_MATCH", "ID_MATCH"), "value"),
    **dict.fromkeys(("BOOL_MATCH", "NONE_MATCH", "CLASS_MATCH"), "value"),
    **dict.fromkeys(("CLOSURE_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "MODULE_MATCH"), "code"),
    **dict.fromkeys(("SEQUENCE_LENGTH", "EMPTY_NN_MODULE_HOOKS_DICT"), "length"),
    **dict.fromkeys(("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"), "keys"),
    **dict.fromkeys(("DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"), "holds"),
    "HASATTR": "has",
    "NOT_NONE_MATCH": "none",
    "NOT_PRESENT_IN_GENERIC_DICT": "own",
    "TENSOR_MATCH": "tensor",
    "TYPE_MATCH": "type",
}
_OF_LIBRARIES = re.compile(r"G\['__(builtins_dict__|import_(torch|annopipe)(_dot_|'))")
_TABLES = re.compile(r"\._(parameters|buffers|modules)$")


@dataclasses.dataclass(frozen=True)
class Captured:
    """A function as Dynamo captured it.

    run: takes the arguments of the function and returns what it returns, with its tensor operations replayed.
    guards: the Python values that have to be as they were.
    """

    run: Callable[..., Any]
    guards: SourceGuards = dataclasses.field(default_factory=SourceGuards)


def capture(
    function: Callable[..., Any], arguments: Mapping[str, Any], what: str, replay: Callable[..., Any]
) -> Captured:
    """Capture ``function(**arguments)``.

    Args:
        what: how messages name the function.
        replay: ``replay(graph_module, *inputs)`` runs the captured graph when ``Captured.run`` is called.

    Raises:
        CaptureError: it is not one graph, or it changes something that outlives it.
    """
    scope: dict[str, Any] = {"__builtins__": builtins}  # Dynamo adds the globals it needs, under names of its own
    private = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    changes = _Changes()
    try:
        with changes.noted(), get_metrics_context(), config.patch(_SETTINGS):
            captured = fullgraph_capture(private, (), dict(arguments))
    except TorchDynamoException as error:
        if isinstance(error.__cause__, AnnopipeError):
            raise error.__cause__ from error
        line = user_frame(getattr(error, "real_stack", None) or ())
        raise CaptureError(f"cannot trace {what} strictly: {understandable(error)}{line}") from error
    names = {**_get_closure_vars(), "L": dict(arguments), "G": scope}
    changes.refuse(what, names)
    guards = tuple(_guards(captured.graph_capture_output.output_graph.guards, names))
    stays = {name: value for name, value in arguments.items() if isinstance(value, types.FunctionType)}
    found = SourceGuards(guards, {**_get_closure_vars(), "G": scope}, stays)
    if captured.backend_input is None:  # it computes nothing
        return Captured(function, found)
    module = captured.backend_input.graph_module
    return Captured(captured.forward_callable(compiled_fn=lambda *inputs: replay(module, *inputs)), found)


class _Changes:
    """What a function changes that outlives it, as Dynamo sees it while it captures."""

    def __init__(self) -> None:
        self._sources: tuple[str, ...] = ()
        self._attributes: dict[str, dict[str, None]] = {}  # of each source, in order
        self._lines: dict[str, str] = {}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """While it is open, Dynamo's changes are noted. Its warning tells which of them outlive the function."""
        store, mutate = SideEffects.store_attr, SideEffects.mutation

        def noting_store(effects: Any, item: Any, name: str, *rest: Any, **named: Any) -> None:
            self._note(item, f".{name}")
            store(effects, item, name, *rest, **named)

        def noting_mutation(effects: Any, item: Any) -> None:
            self._note(item, "")
            mutate(effects, item)

        SideEffects.store_attr, SideEffects.mutation = noting_store, noting_mutation  # type: ignore[method-assign]
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield
        finally:
            SideEffects.store_attr, SideEffects.mutation = store, mutate  # type: ignore[method-assign]
        for warning in caught:
            if _SIDE_EFFECTS in str(warning.message):
                self._sources = tuple(dict.fromkeys(re.findall(r"""["'](\S.*?)["'](?=[,\]](?: |$))""", str(warning.message))))
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def refuse(self, what: str, scope: dict[str, Any]) -> None:
        """Raise for what outlives the function.

        Raises:
            CaptureError: something does.
        """
        changed = [f"{source}{name}" for source in self._sources for name in self._attributes.get(source, {"": None})]
        if changed:
            names = ", ".join(dict.fromkeys(user_name(source, scope) for source in changed))
            raise CaptureError(
                f"{what} changes {names}: a graph cannot replay that, and two microbatches in flight would share it; "
                f"return the value from forward, or update a buffer in place{self._lines.get(self._sources[0], '')}"
            )

    def _note(self, item: Any, attribute: str) -> None:
        source = getattr(item, "source", None)
        if source is not None:
            self._attributes.setdefault(source.name, {})[attribute] = None
            self._lines.setdefault(source.name, user_frame(torch._guards.TracingContext.extract_stack()))


def _guards(found: Any, scope: dict[str, Any]) -> Iterator[SourceGuard]:
    """What Dynamo guards, each value once; without tensors that stage graphs take as inputs, and without libraries."""
    module: nn.Module = scope["L"]["self"]
    bound = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    seen = set()
    for guard in sorted(found):
        aspect = _ASPECTS.get(guard.inner_create_fn().__name__)
        keywords = getattr(guard.create_fn, "keywords", {})
        key = keywords.get("attr", keywords.get("key"))
        source = guard.name
        if aspect is None or _OF_LIBRARIES.match(source) or (source, aspect, repr(key)) in seen:
            continue
        seen.add((source, aspect, repr(key)))
        if aspect == "type" and _TABLES.search(source):
            continue
        if aspect == "tensor":
            value = guard.originating_source.get_value({"L": scope["L"], "G": scope["G"]}, dict(scope), {})
            if id(value) in bound or not source.startswith(("L['self']", "L['loss_fn']", "G")):
                continue
        yield SourceGuard.of(source, aspect, key, scope)
