"""AP301: take tags out."""

from rewriters.reading import Reading
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Site
from rewriters.stripping import strip_tags

__all__ = ["RULE"]

_CODE = "AP301"


def _apply(reading: Reading, settings: Settings) -> Outcome:  # noqa: ARG001 - as every rule
    removed = strip_tags(reading)
    sites = []
    for call in removed.tags:
        line, end_line = reading.lines(call)
        sites.append(Site(line, end_line, _CODE, "", reading.tree.code_for_node(call), "removed"))
    return Outcome(removed.tree, tuple(sites))


RULE = Rule(
    code=_CODE,
    name="strip",
    summary="Take all tags out: region, comm and nano_batch, and the import if nothing else uses it.",
    why="""\
A file that annopipe has tagged becomes what it was, to the byte. Comments that somebody has put on a tag, or under it,
stay. nano_batches is no tag: it cuts a batch, and stays.
""",
    apply=_apply,
    triggers=("annopipe",),
    changes=(
        (
            """\
import os
import annopipe as ap

@ap.region("layer")
@decorated
def f(x):
    # above
    with ap.region("experts"):  # why
        x = g(x)
        # below
    with torch.no_grad(), ap.comm("dispatch"):
        return x
""",
            """\
import os

@decorated
def f(x):
    # above
    # why
    x = g(x)
    # below
    with torch.no_grad():
        return x
""",
        ),
        (
            "import annopipe\nwith annopipe.region('a'): y = f(x); z = y\n",
            "y = f(x); z = y\n",
        ),
        (
            "from annopipe import comm, trace\nwith (\n    lock,\n    comm('a'),\n):\n    trace()\n",
            "from annopipe import trace\nwith (\n    lock,\n):\n    trace()\n",
        ),
    ),
    leaves=("import annopipe\nfor part in annopipe.nano_batches(x, 2):\n    f(part)\n",),
)
