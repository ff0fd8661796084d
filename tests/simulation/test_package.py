import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import annopipe.simulation

MODULES = ["annopipe.simulation"]
MODULES += [found.name for found in pkgutil.walk_packages(annopipe.simulation.__path__, "annopipe.simulation.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_package_imports_no_torch():
    program = "import sys, annopipe.simulation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_exported_name_is_there_and_documented():
    for name in annopipe.simulation.__all__:
        assert getattr(annopipe.simulation, name).__doc__
