"""Codemods of model source: add tags, convert them, take them out again; ``annopipe rewrite`` is their command line.

    result = rewrite(data)          # what would become of a file: result.after, result.sites
    result = rewrite(result.after, Settings(select=("AP301",)))   # and back, to the byte

A rule is one file of ``rewriters/rules``.
"""

from rewriters.engine import FileResult, rewrite
from rewriters.rules import RULES, Rule
from rewriters.settings import Settings
from rewriters.sites import Site

__all__ = ["RULES", "FileResult", "Rule", "Settings", "Site", "rewrite"]
