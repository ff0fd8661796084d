"""AP404: turn patch lists into tags in the source of what they patch."""

import libcst as cst

from rewriters.imports import add_import, bind
from rewriters.patches import Patch, patches_in
from rewriters.patching import patch
from rewriters.reading import Found, Reading
from rewriters.rules.rule import Outcome, Rule
from rewriters.settings import Settings
from rewriters.sites import Site

__all__ = ["RULE"]

_CODE = "AP404"
_BOUND_OTHERWISE = {"staticmethod", "classmethod", "property"}


def _apply(reading: Reading, settings: Settings) -> Outcome:
    listed = list(patches_in(reading))
    here = [p for _, p in listed if not p.reason and _method(reading, p) is not None]
    elsewhere = [p for p in settings.patches if not p.reason and p not in here]
    sites: list[Site] = []
    decorators: dict[int, list[str]] = {}
    moving = [(p, _method(reading, p)) for p in (*here, *elsewhere)]
    wanted = [(p, found) for p, found in moving if found is not None]
    binding = bind(reading, "annopipe", {p.call for p, _ in wanted}, settings.import_style)
    for p, found in wanted:
        node = cst.ensure_type(found.node, cst.FunctionDef)
        code = f"{binding.names[p.call]}({p.argument})"
        line = reading.lines(node)[0]
        name = f"{p.owner}.{p.method}"
        if _BOUND_OTHERWISE & _names(node):
            sites.append(Site(line, line, _CODE, "", name, "refused", "no plain method: tag inside of it by hand"))
        elif any(reading.tree.code_for_node(d.decorator) == code for d in node.decorators):
            sites.append(Site(line, line, _CODE, "", name, "already", f"under {code}"))
        else:
            decorators.setdefault(id(node), []).insert(0, code)  # the patch that comes last is outermost
            sites.append(Site(line, line, _CODE, "", name, "wrapped"))
    known = {(p.owner, p.method) for p in settings.patches if not p.reason} | {(p.owner, p.method) for p in here}
    reasons = {(p.owner, p.method): p.reason for p in settings.patches}
    gone = set()
    for statement, p in listed:
        line, end_line = reading.lines(statement)
        name = f"{p.owner}.{p.method}"
        if (p.owner, p.method) in known and not p.reason:
            gone.add(id(statement))
            sites.append(Site(line, end_line, _CODE, "", name, "removed"))
        else:
            missing = f"no class {p.owner} with {p.method} among the files: give the file that has it, too"
            reason = p.reason or reasons.get((p.owner, p.method)) or missing
            sites.append(Site(line, end_line, _CODE, "", name, "refused", reason))
    tree = patch(reading.tree, decorators, gone)
    if decorators and binding.statement:
        tree = add_import(tree, binding.statement)
    return Outcome(tree, tuple(sites))


def _method(reading: Reading, p: Patch) -> Found | None:
    for found in reading.functions:
        node = cst.ensure_type(found.node, cst.FunctionDef)
        inside = len(found.stack) > 2 and isinstance(found.stack[-3], cst.ClassDef)
        if inside and found.owner is not None and (found.owner.name, node.name.value) == (p.owner, p.method):
            return found
    return None


def _names(node: cst.FunctionDef) -> set[str]:
    return {d.decorator.value for d in node.decorators if isinstance(d.decorator, cst.Name)}


RULE = Rule(
    code=_CODE,
    name="patch-list",
    summary="Turn X.f = annotate_fn({...})(X.f) into a tag on f in the source of X.",
    why="""\
Give the file with the patches and the files with the classes in one call. A patch whose class is found is taken out of
the list and becomes the outermost decorator of the method; others stay, with the reason.
""",
    apply=_apply,
    changes=(
        (
            """\
from torch.fx.traceback import annotate_fn
EXCHANGE = "EP_token_exchange"
class Dispatcher:
    @checked
    def dispatch(self, x):
        return x
def patch():
    Dispatcher.dispatch = annotate_fn({EXCHANGE: "dispatch"})(
        Dispatcher.dispatch
    )
""",
            """\
import annopipe
from torch.fx.traceback import annotate_fn
EXCHANGE = "EP_token_exchange"
class Dispatcher:
    @annopipe.comm("dispatch/exchange")
    @checked
    def dispatch(self, x):
        return x
def patch():
    pass
""",
        ),
    ),
    leaves=("A.f = annotated(A.f)\n",),
    refuses=(
        (
            "from torch.fx.traceback import annotate_fn\nA.f = annotate_fn({'EP': 'combine'})(A.f)\n",
            "no class A with f",
        ),
        (
            "from torch.fx.traceback import annotate_fn as g\nclass A:\n    def f(): ...\nA.f = g({'b': 1})(A.f)\n",
            "no vocabulary has a region",
        ),
    ),
)
