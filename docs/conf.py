"""How Sphinx builds the site: `make site`. The reference pages are made from the code when it is built."""

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from tools import docstrings, reference  # noqa: E402 - found on the path that the line above adds to

project = "annopipe"
author = "the annopipe authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "annopipe"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"  # `name` in a docstring is code
pygments_style = "friendly"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
napoleon_use_ivar = True  # fields of a dataclass stand once, under its attributes
toc_object_entries_show_parents = "hide"

reference.write(DOCS / "reference")


def setup(app: Any) -> None:
    """Read docstrings as this house writes them, and put guides that index.md does not name behind its last one."""
    docstrings.connect(app)
    app.connect("source-read", _all_guides)


def _all_guides(app: Any, page: str, source: list[str]) -> None:  # noqa: ARG001 - Sphinx's signature
    if page == "index":
        named = source[0].splitlines()
        others = sorted(path.stem for path in DOCS.glob("*.md") if path.stem not in ("index", *named))
        source[0] = source[0].replace("\ngpu\n", "\n".join(["", "gpu", *others, ""]))
