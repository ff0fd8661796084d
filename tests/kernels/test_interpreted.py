"""Our Triton kernels equal PyTorch's operations: what interpreted.py tests, in a process where Triton interprets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).with_name("interpreted.py")
NAMES = re.findall(r"^def (test_\w+)", FILE.read_text(encoding="utf-8"), re.MULTILINE)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said() -> str:
    pytest.importorskip("triton", reason="Triton is not installed: it is there for Linux on x86-64")
    if torch.__version__.startswith("2.11."):
        pytest.skip("the interpreter of PyTorch 2.11's Triton fails on arrays of this numpy with one element")
    program = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(FILE)]
    variables = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(program, env=variables, capture_output=True, text=True, check=False, timeout=400).stdout


@pytest.mark.parametrize("name", NAMES)
def test_interpreted(said: str, name: str) -> None:
    results = re.findall(rf"^(\w+) \S*::{name}\b", said, re.MULTILINE)
    assert results, said
    assert set(results) == {"PASSED"}, said
