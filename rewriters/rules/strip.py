"""AP301: take tags out."""

from rewriters.reading import Reading
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Action, Site
from rewriters.stripping import strip_tags

__all__ = ["RULE"]

_CODE = "AP301"


def _apply(reading: Reading, settings: Settings) -> Outcome:  # noqa: ARG001 - as every rule
    removed = strip_tags(reading)
    sites = []
    told = [*((call, "") for call in removed.tags), *removed.refused]
    for call, reason in told:
        action: Action = "refused" if reason else "removed"
        sites.append(Site(*reading.lines(call), _CODE, "", reading.tree.code_for_node(call), action, reason))
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
        (
            "import annopipe\n@annopipe.region('f')\nasync def f(x):\n    return x\n",
            "async def f(x):\n    return x\n",
        ),
        (
            """\
from annopipe import (
    comm,  # c
    trace,  # t
)
with (
    comm('a'),  # why
    lock,  # there
):  # here
    trace()
with comm(
    'a',  # a
):
    pass
""",
            """\
# c
from annopipe import (
    trace,  # t
)
# why
with (
    lock,  # there
):  # here
    trace()
# a
pass
""",
        ),
        (
            "from annopipe import comm\n__all__ = ['comm']\nwith comm('a'):\n    pass\n",
            "from annopipe import comm\n__all__ = ['comm']\npass\n",
        ),
    ),
    leaves=(
        "import annopipe\nfor part in annopipe.nano_batches(x, 2):\n    f(part)\n",
        "import annopipe as ap\nasync def f():\n    async with lock, ap.region('a'):\n        pass\n",
    ),
    refuses=(
        ("import annopipe as ap\nwith ap.region('a') as r:\n    print(r)\n", "given a name with 'as'"),
        ("import annopipe as ap\ndef f(ap):\n    with ap.region('a'):\n        pass\n", "also bound otherwise"),
    ),
)
