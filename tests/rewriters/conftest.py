"""The command line, run in the process of the tests."""

from tests.cli.conftest import _annopipe

__all__ = ["_annopipe"]
