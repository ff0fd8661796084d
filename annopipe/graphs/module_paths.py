"""Record on every traced node which module made it, by the module's dotted path ("layers.3.attention").

Direct tracing keeps no module stack, and tags of other code say "dispatch" in every layer: the path says which layer.
It is written beside the tags, so it reaches backward nodes as these do.

needs       a module that is about to be called under tracing.
does        opens the path before each submodule's forward and closes it behind, with hooks common to all modules.
guarantees  the module and its own hooks stay as they are; the hooks are gone afterwards, also on an exception.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.fx.traceback as fx_traceback
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["MODULE_KEY", "recorded_module_paths"]

MODULE_KEY = "annopipe_module"


@contextlib.contextmanager
def recorded_module_paths(module: nn.Module) -> Iterator[None]:
    """While it is open, operations in a submodule of ``module`` are annotated with the submodule's path.

    A submodule with several names has its first.
    """
    paths = {id(child): name for name, child in module.named_modules()}
    outer: list[str | None] = []

    def enter(child: nn.Module, _: Any) -> None:
        if id(child) in paths:
            outer.append(_set_path(paths[id(child)]))

    def leave(child: nn.Module, *_: Any) -> None:
        if id(child) in paths and outer:
            _set_path(outer.pop())

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        if outer:
            _set_path(outer[0])


def _set_path(path: str | None) -> str | None:
    """Make ``path`` the current one (None: no path); returns the one before. Other annotations stay."""
    current = fx_traceback.get_current_meta()
    custom = dict(current.get("custom", {}))
    before: str | None = custom.pop(MODULE_KEY, None)
    if path is not None:
        custom[MODULE_KEY] = path
    if custom:
        current["custom"] = custom
    else:
        current.pop("custom", None)
    return before
