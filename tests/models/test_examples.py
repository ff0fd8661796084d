"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

from annopipe import models

NAMES = [module.name for module in pkgutil.iter_modules(models.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_examples_run(name):
    assert doctest.testmod(importlib.import_module(f"annopipe.models.{name}")).failed == 0
