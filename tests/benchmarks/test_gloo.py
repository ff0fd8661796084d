"""A group over gloo overrides what PyTorch looks up, and hands on what it does not change."""

import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import torch
import torch.distributed as dist

from benchmarks.groups import gloo


def test_every_method_that_the_trampoline_looks_up_is_overridden() -> None:
    """A method that it does not find runs with the interpreter lock held."""
    (header,) = (Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d").rglob("PyProcessGroup.hpp")
    source = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(encoding="utf-8"))
    virtual = set(re.findall(r"WORK_OVERRIDE\(\s*ProcessGroup,\s*(\w+)", source))
    renamed = set(re.findall(r"get_override\(\s*static_cast<const ProcessGroup\*>\(this\),\s*\"(\w+)\"", source))
    assert {"allgather", "barrier", "send", "allreduce"} <= virtual, "what is looked up is found in the header"
    assert virtual | renamed <= set(vars(gloo.GlooGroup))


def test_every_method_that_only_passes_on_calls_gloo_with_the_same_arguments() -> None:
    """Or the method of the base class would look for it here again."""
    names = {"recvAnysource": "recv_anysource"}
    names |= {name: f"_{name}" for name in ("start_coalescing", "end_coalescing")}
    takes = {"barrier": 0, "recv": 3, "recvAnysource": 2, "send": 3, "start_coalescing": 1, "end_coalescing": 1}
    takes |= {"reconfigure": 1, "reduce": 2}
    info = SimpleNamespace(store=dist.HashStore(), group_rank=0, group_size=1, timeout=timedelta(seconds=5))
    group = gloo.GlooGroup(info)
    for name in ("allgather", "alltoall", "gather", "reduce_scatter", "scatter", *takes):
        group.gloo = Mock()
        given = [object() for _ in range(takes.get(name, 3))]
        found = getattr(group, name)(*given)
        called = getattr(group.gloo, names.get(name, name))
        called.assert_called_once_with(*given)
        assert name == "start_coalescing" or found is called.return_value
