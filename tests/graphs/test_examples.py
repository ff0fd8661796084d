"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import annopipe.graphs

MODULES = [f"annopipe.graphs.{module.name}" for module in pkgutil.iter_modules(annopipe.graphs.__path__)]


@pytest.mark.parametrize("name", [*MODULES, "annopipe.annotate", "annopipe.pytrees"])
def test_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
