from pathlib import Path

import pytest

from tools.check_sizes import ADAPTERS, check


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def lines(count: int) -> str:
    return "x = 1\n" * count


def function(body_lines: int, docstring_lines: int = 0) -> str:
    docstring = ['    """Say.', *["    more"] * (docstring_lines - 2), '    """'] if docstring_lines else []
    return "\n".join(["def f():", *docstring, *["    x = 1"] * body_lines, ""])


GOOD = {
    "annopipe/__init__.py": "def __getattr__(name):\n    from annopipe.ordering import plan\n    return plan\n",
    "annopipe/errors.py": "class AnnopipeError(Exception): pass\n",
    "annopipe/annotate.py": "import torch\nfrom annopipe.errors import AnnopipeError\n",
    "annopipe/simulation/engine.py": "from __future__ import annotations\nfrom . import links\n",
    "annopipe/simulation/links.py": "from ..errors import AnnopipeError\n",
    "annopipe/graphs/capture.py": "from torch._functorch import aot_autograd\nimport torch\ntorch._C.x\n",
    "annopipe/graphs/nodes.py": "import torch\ntorch.ops._c10d_functional.wait_tensor\ntorch._check(True)\nself._own\n",
    "annopipe/graphs/aliases.py": "aten = torch.ops.aten\naten._to_copy\nself._own = 2\nother._own\nos._exit",
    "annopipe/costs/table.py": "from annopipe import errors, graphs\nimport annopipe.simulation.engine\n",
    "annopipe/ordering/registry.py": "from annopipe.costs.table import x\nfrom annopipe.models import y\n",
    "annopipe/cli.py": "import annopipe as ap\ndef main():\n    from benchmarks import overlap\n",
    "benchmarks/overlap.py": "import annopipe\nfrom annopipe.ordering import registry\n",
    "benchmarks/long.py": lines(400),
    "tests/test_long.py": lines(600),
    "tests/test_private.py": "from annopipe.graphs.ops import _own\nimport torch._inductor\n",
    "rewriters/edges.py": function(59, docstring_lines=5) + "".join(f"def _f{i}(): ...\n" for i in range(8)),
}


def test_a_tree_at_the_limits_is_fine(tmp_path: Path) -> None:
    assert check(tree(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("benchmarks/bad.py", lines(401), "1: file has 401 lines, at most 400 are allowed"),
        ("tests/test_bad.py", lines(601), "1: file has 601 lines, at most 600 are allowed"),
        ("examples/bad.py", function(60), "1: function f has 61 lines, at most 60 are allowed"),
        ("examples/bad.py", function(60, docstring_lines=3), "1: function f has 61 lines, at most 60 are allowed"),
        (
            "annopipe/graphs/bad.py",
            "class _A: ...\n" + "".join(f"def _f{i}(): ...\n" for i in range(8)),
            "9: 9 private top-level helpers, at most 8 are allowed",
        ),
        ("rewriters/bad.py", "from a.b import c, _d", "1: imports the private name _d of a.b"),
        ("benchmarks/bad.py", "import a._b.c", "1: imports the private name _b of a._b.c"),
        ("benchmarks/bad.py", "from .netlab import _b", "1: imports the private name _b of benchmarks.netlab"),
        ("annopipe/graphs/bad.py", "import torch._C", "1: imports the private name _C of torch._C"),
        ("annopipe/graphs/bad.py", "x\ntorch._dynamo.reset()", "2: uses the private name _dynamo of torch"),
        ("annopipe/graphs/bad.py", "torch.fx.node._x", "1: uses the private name _x of torch.fx.node"),
        ("annopipe/graphs/bad.py", "operator._schema.name", "1: uses the private name _schema of operator"),
        ("annopipe/graphs/bad.py", "self.module._parameters", "1: uses the private name _parameters of self.module"),
        ("benchmarks/bad.py", "import torch.distributed as d\nd._x()", "2: uses the private name _x of d"),
        ("annopipe/graphs/effects.py", "import torch", "1: is listed in ADAPTERS and uses no private name"),
        ("annopipe/graphs/bad.py", "def f():\n    import os", "2: import inside a function"),
        (
            "annopipe/costs/bad.py",
            "from annopipe.ordering.registry import x",
            "1: annopipe.costs imports annopipe.ordering, which is not below it",
        ),
        (
            "annopipe/costs/bad.py",
            "from ..models import x",
            "1: annopipe.costs imports annopipe.models, which is not below it",
        ),
        (
            "annopipe/costs/bad.py",
            "import annopipe",
            "1: annopipe.costs imports annopipe.__init__, which is not below it",
        ),
        (
            "annopipe/scheduling/bad.py",
            "from annopipe import annotate",
            "1: annopipe.scheduling imports annopipe.annotate, which is not below it",
        ),
        (
            "annopipe/pipeline/bad.py",
            "from benchmarks import x",
            "1: annopipe.pipeline imports benchmarks, which is above it",
        ),
        ("annopipe/scheduling/bad.py", "import torch.fx", "1: annopipe.scheduling imports no torch"),
        ("annopipe/simulation/bad.py", "from torch import nn", "1: annopipe.simulation imports no torch"),
        ("annopipe/attic/bad.py", "", "1: annopipe.attic is on no floor: add it to FLOORS"),
    ],
)
def test_each_rule_names_the_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    assert check(tree(tmp_path, {**GOOD, name: text})) == [f"{name}:{message}"]


def test_every_adapter_exists() -> None:
    root = Path(__file__).resolve().parents[2]
    assert [name for name in ADAPTERS if not (root / name).is_file()] == []
