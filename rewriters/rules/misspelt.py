"""AP302: report region names that look misspelt."""

import difflib
import re

from rewriters.reading import Reading
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Site
from rewriters.tags import own_tag

__all__ = ["KNOWN", "RULE"]

_CODE = "AP302"
KNOWN = (
    *("attention", "router", "dispatch", "experts", "combine", "unpermute", "permute", "shared"),
    *("moe", "mlp", "embed", "head", "norm", "loss", "block", "layer", "stage", "exchange", "counts"),
)
_NUMBER = re.compile(r"[_\-]?\[?\d*\]?$")
_CLOSE = 0.8  # "expertz" is 0.86 of "experts"; "expert_choice" is far from all


def _apply(reading: Reading, settings: Settings) -> Outcome:
    known = (*KNOWN, *settings.regions)
    sites = []
    for found in reading.calls:
        tag = own_tag(found.node, reading.imports)  # type: ignore[arg-type]
        if tag is None or tag.call == "nano_batch":
            continue
        for name in tag.path.split("/"):
            plain = _NUMBER.sub("", name)
            near = difflib.get_close_matches(plain, known, n=1, cutoff=_CLOSE)
            if near and plain not in known:
                line, end_line = reading.lines(tag.node)
                reason = f"region {name!r}: {near[0]!r} is meant? else add it to regions in [tool.annopipe.rewrite]"
                sites.append(Site(line, end_line, _CODE, "", reading.tree.code_for_node(tag.node), "reported", reason))
    return Outcome(reading.tree, tuple(sites))


RULE = Rule(
    code=_CODE,
    name="misspelt",
    summary="Report names of regions that look misspelt.",
    why="""\
Patterns and policies find regions by name: one that is misspelt is silently no target. A name that is close to a
usual one, and not one itself, is reported; nothing is changed.
""",
    apply=_apply,
    triggers=("annopipe",),
    leaves=(
        'import annopipe\nwith annopipe.region("block3/moe"):\n    pass\n',
        'import annopipe\nwith annopipe.region("vision_tower"):\n    pass\n',
    ),
    refuses=(
        ('import annopipe\nwith annopipe.region("moe/expertz"):\n    pass\n', "'experts' is meant?"),
        ('from annopipe import comm\n@comm("dispach")\ndef f(x):\n    pass\n', "'dispatch' is meant?"),
    ),
)
