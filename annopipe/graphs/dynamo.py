"""Adapter to Dynamo: capture a function as one graph of tensor operations, with what that graph takes for granted.

needs       a function that uses no globals of its own, and example arguments.
does        has Dynamo run it symbolically: nothing is computed, and nothing that the function can reach changes.
guarantees  the whole function is one graph, or an error names the user's line; earlier captures of the process have no
            influence; every Python value that the graph holds for is guarded; every change that outlives it is told.

The only file that imports ``torch._dynamo``. Sources: ``torch/_dynamo/convert_frame.py`` (``fullgraph_capture``),
``guards.py`` and ``output_graph.py`` there.
"""

import ast
import builtins
import contextlib
import dataclasses
import re
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.convert_frame import fullgraph_capture
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.guards import _get_closure_vars
from torch._dynamo.utils import get_metrics_context, get_torch_function_mode_stack, set_torch_function_mode_stack

from annopipe.auxiliary import auxiliary_losses_refused
from annopipe.errors import AnnopipeError, CaptureError
from annopipe.graphs.failures import user_frame
from annopipe.graphs.refusals import understandable
from annopipe.graphs.source_guards import SourceGuard, SourceGuards, evaluated, user_name

__all__ = ["Captured", "capture"]

_SETTINGS = {
    "allow_rnn": True,
    "assume_static_by_default": True,
    "automatic_dynamic_shapes": False,  # else the second batch size that a process sees becomes a symbol
    "capture_dynamic_output_shape_ops": True,
    "capture_scalar_outputs": True,
    "do_not_emit_runtime_asserts": True,  # AOT tracing of the captured graph makes its own
    "side_effect_replay_policy": "warn",
    "skip_guards_on_constant_func_defaults": False,
    "specialize_float": True,
    "specialize_int": True,
    "trace_autograd_ops": True,
}
_SIDE_EFFECTS = "certain side effects happened"  # in a warning that ends with a list of sources
_MODES = "<unknown source>"  # the stack of function modes, which `with` blocks in forward leave as it was
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
_BUILTINS = {name: value for name, value in vars(builtins).items() if not name.startswith("_")}
_OF_LIBRARIES = re.compile(r"G\['__(builtins_dict__|import_(torch|annopipe)(_dot_|'))")
_OF_CALL = re.compile(r"L\['(args|kwargs|target)'\]")
_TABLES = re.compile(r"\._(parameters|buffers|modules)$")


@dataclasses.dataclass(frozen=True)
class Change:
    """An object that outlives a captured function and that the function changes: ``Captured.run`` changes it, too."""

    name: str  # as its user writes it
    target: Any


@dataclasses.dataclass(frozen=True)
class Captured:
    """A function as Dynamo captured it.

    run: takes the arguments of the function and returns what it returns, with its tensor operations replayed.
    guards: the Python values that have to be as they were.
    changes: what the function changes besides tensors.
    """

    run: Callable[..., Any]
    guards: SourceGuards = dataclasses.field(default_factory=SourceGuards)
    changes: tuple[Change, ...] = ()


def capture(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    what: str,
    stay: Iterable[str],
    replay: Callable[..., Any],
) -> Captured:
    """Capture ``function(**arguments)``, one of which is the module ``self``.

    Args:
        what: how messages name the function.
        stay: names of the arguments that are the same whenever the guards are checked.
        replay: ``replay(graph_module, *inputs)`` runs the captured graph when ``Captured.run`` is called.

    Raises:
        CaptureError: it is not one graph.
    """
    scope: dict[str, Any] = {"__builtins__": builtins}  # Dynamo adds the globals it needs, under names of its own
    private = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    try:
        with auxiliary_losses_refused(), _noted_changes() as sources, get_metrics_context(), config.patch(_SETTINGS):
            captured = fullgraph_capture(private, (), dict(arguments))
    except TorchDynamoException as error:
        if isinstance(error.__cause__, AnnopipeError):
            raise error.__cause__ from error
        line = user_frame(getattr(error, "real_stack", None) or ())
        raise CaptureError(f"cannot trace {what} strictly: {understandable(error)}{line}") from error
    names = {**_get_closure_vars(), "G": scope}
    found = {**names, "L": dict(arguments)}
    read = _guards(captured.graph_capture_output.output_graph.guards, found)
    guards = tuple(sorted(read, key=lambda guard: guard.aspect != "type"))  # another type is told as that
    kept = SourceGuards(guards, names, {name: arguments[name] for name in stay})
    if captured.backend_input is None:  # it computes nothing
        return Captured(function, kept)
    module = captured.backend_input.graph_module
    known = {**_BUILTINS, **scope}  # PyTorch 2.11 looks for builtins, too, among the globals
    run = captured.forward_callable(compiled_fn=lambda *inputs: replay(module, *inputs), extra_globals=known)

    def run_alone(*args: Any, **kwargs: Any) -> Any:
        modes = get_torch_function_mode_stack()  # a capture ends with those of its own time
        try:
            return run(*args, **kwargs)
        finally:
            set_torch_function_mode_stack(modes)

    return Captured(
        run_alone, kept, tuple(Change(user_name(source, found), evaluated(source, found)) for source in sources)
    )


@contextlib.contextmanager
def _noted_changes() -> Iterator[list[str]]:
    """Yields a list; when it closes, the list has the sources of what outlives the captured function and changes."""
    sources: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield sources
    for warning in caught:
        _, found, listed = str(warning.message).partition(_SIDE_EFFECTS)
        if found:
            named = dict.fromkeys(ast.literal_eval(listed[listed.index("[") :]))
            sources += [source for source in named if source != _MODES]
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _guards(found: Any, scope: dict[str, Any]) -> Iterator[SourceGuard]:
    """What Dynamo guards, each value once; without tensors of the call, which are checked as inputs, and libraries."""
    module = scope["L"]["self"]
    bound = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    seen = set()
    for guard in sorted(found):
        source, aspect = guard.name, _ASPECTS.get(guard.inner_create_fn().__name__)
        keywords = getattr(guard.create_fn, "keywords", {})
        key = keywords.get("attr", keywords.get("key"))
        if aspect == "has" and key is None:
            source, key = _owner_and_attribute(guard.originating_source)
        if (other := keywords.get("source_b")) and not isinstance(evaluated(source, scope), torch.Tensor):
            source, aspect = f"({source}) is ({other.name})", "value"  # one object, and only one place has its guards
        if aspect is None or _OF_LIBRARIES.match(source) or (aspect == "type" and _TABLES.search(source)):
            continue
        if aspect == "tensor" and _OF_CALL.match(source):
            continue
        if aspect == "tensor" and id(evaluated(source, scope)) in bound:
            aspect = "like"
        if (source, aspect, repr(key)) not in seen:
            seen.add((source, aspect, repr(key)))
            yield SourceGuard.of(source, aspect, key, scope)


def _owner_and_attribute(source: Any) -> tuple[str, str]:
    """PyTorch 2.11 guards that an attribute exists by the attribute's own source, later ones by its owner's."""
    attribute = source if hasattr(source, "member") else source.base  # a module's source is wrapped
    return attribute.base.name, attribute.member
