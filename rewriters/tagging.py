"""From places to tags: decide the role of each place, refuse what cannot be wrapped, then wrap, once, together.

All tagging rules share this one plan and this one edit, so that no rule sees what another has changed.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import libcst as cst

from rewriters.anchors import EXCHANGE, ROLES, Anchor, Anchors
from rewriters.exchange_roles import UNDECIDED, exchange_role
from rewriters.hoisting import hoistable, is_whole, new_name
from rewriters.imports import add_import, bind
from rewriters.names import dotted
from rewriters.reading import Reading
from rewriters.rules.rule import Outcome, Place, Rule
from rewriters.settings import Settings
from rewriters.sites import Action, Site
from rewriters.surroundings import Statement, enclosing_tags, functions, obstacle, says_skip, statement
from rewriters.tags import Tag
from rewriters.wrapping import Wrap, wrap

__all__ = ["tag"]


@dataclasses.dataclass(slots=True)
class _Decision:
    place: Place
    line: Statement | None
    action: Action
    reason: str
    hoisted: bool = False

    @property
    def region(self) -> str:
        return ROLES[self.place.role].region if self.place.role in ROLES else ""


def tag(reading: Reading, settings: Settings, rules: Sequence[Rule]) -> Outcome:
    """Put the places of the rules under tags."""
    places = _places(reading, settings, rules)
    decisions = [_decide(place, reading) for place in places]
    for rule in rules:
        if rule.follow is not None and settings.wants(rule.code):
            launched = [d.place for d in decisions if d.action in ("wrapped", "already")]
            decisions += [_decide(place, reading) for place in rule.follow(reading, launched)]
    _refuse_mixed(decisions, settings)  # also where only one of the two is selected
    decisions = [d for d in decisions if settings.wants(d.place.rule)]
    _drop_covered(decisions)
    wraps = _wraps(decisions, reading, settings)
    sites = tuple(sorted(_site(d, reading) for d in decisions))
    if not wraps:
        return Outcome(reading.tree, sites)
    calls = {ROLES[role].call for parts in wraps.values() for role, _, _ in parts}
    binding = bind(reading, "annopipe", calls, settings.import_style)
    texts = {role.name: f'{binding.names[role.call]}("{role.region}")' for role in ROLES.values() if role.call in calls}
    edits = {
        key: Wrap(
            "" if any(call for _, call, _ in parts) else texts[parts[0][0]],
            tuple((call, name, texts[role]) for role, call, name in parts if call is not None),
        )
        for key, parts in wraps.items()
    }
    tree = wrap(reading.tree, edits, merge=settings.extent == "block")
    return Outcome(add_import(tree, binding.statement) if binding.statement else tree, sites)


def _places(reading: Reading, settings: Settings, rules: Sequence[Rule]) -> list[Place]:
    """Every place of every rule, selected or not: the role of an all-to-all depends on where the experts are."""
    by_role = {anchor.role: rule.code for rule in rules for anchor in rule.anchors}
    table = Anchors(
        [dataclasses.replace(anchor, rule=rule.code) for rule in rules for anchor in rule.anchors]
        + [Anchor(role, name, needs, by_role.get(role, "AP108")) for role, name, needs in settings.anchors]
    )
    places = []
    for found in reading.calls:
        if found.name.rpartition(".")[2].removesuffix("[]") in table.last_parts:
            anchor = table.match(found, reading)
            if anchor is not None:
                places.append(Place(found, anchor.rule, anchor.role, found.name))
    for rule in rules:
        if rule.find is not None:
            places += rule.find(reading)
    experts = [line for p in places if p.role == "experts" and (line := statement(p.found)) is not None]
    return [_with_role(place, reading, settings, experts) for place in places]


def _with_role(place: Place, reading: Reading, settings: Settings, experts: Sequence[cst.CSTNode]) -> Place:
    if place.role != EXCHANGE:
        return place
    role = exchange_role(place.found, reading, experts) or settings.role
    return place if role is None else dataclasses.replace(place, role=role)


def _decide(place: Place, reading: Reading) -> _Decision:
    found = place.found
    line = statement(found)
    if line is not None and says_skip(line):
        return _Decision(place, line, "skipped", "a comment says so")
    region = ROLES[place.role].region if place.role in ROLES else ""
    for outer in enclosing_tags(found, reading):
        if not isinstance(outer, Tag):
            return _Decision(place, line, "already", f"under {outer[1:-1]}: AP201 converts that")
        if outer.region == region:
            return _Decision(place, line, "already", f"under {outer.call}({outer.path!r})")
    reason = obstacle(found, reading)
    if not reason and place.role == EXCHANGE:
        reason = UNDECIDED
    return _Decision(place, line, "refused" if reason else "wrapped", reason)


def _drop_covered(decisions: Iterable[_Decision]) -> None:
    """Inside a wrapped loop, or a function of this file that is tagged where it is called, the tag is there already."""
    loops = {(id(d.line), d.region) for d in decisions if d.action == "wrapped" and isinstance(d.line, cst.For)}
    called: set[tuple[str, str]] = set()
    for d in decisions:
        if d.action in ("wrapped", "already") and isinstance(d.place.found.node, cst.Call):
            called.add((d.place.found.name.removeprefix("self."), d.region))
    for d in decisions:
        if d.action != "wrapped":
            continue
        around = [node for node in d.place.found.stack if node is not d.place.found.node]
        if any((id(node), d.region) in loops for node in around):
            d.action, d.reason = "already", "inside a loop that is under the tag"
        for name in functions(d.place.found):
            if (name, d.region) in called and name != d.place.found.name.removeprefix("self."):
                d.action, d.reason = "already", f"{name} is under the tag where it is called"


def _refuse_mixed(decisions: Iterable[_Decision], settings: Settings) -> None:
    by_line: dict[int, list[_Decision]] = collections.defaultdict(list)
    for d in decisions:
        if d.action == "wrapped" and d.line is not None:
            by_line[id(d.line)].append(d)
    for group in by_line.values():
        regions = sorted({d.region for d in group})
        if len(regions) > 1 and settings.extent != "call":
            for d in group:
                d.action = "refused"
                d.reason = (
                    f"{' and '.join(regions)} in one statement: give each a statement of its own, or --extent call"
                )


Part = tuple[str, cst.Call | None, str]  # role, and for a call to take out of its statement: the call and its variable


def _wraps(decisions: Sequence[_Decision], reading: Reading, settings: Settings) -> dict[int, list[Part]]:
    """What to wrap, keyed by the statement's identity."""
    wraps: dict[int, list[Part]] = collections.defaultdict(list)
    taken = set(reading.names)
    wanted = [d for d in decisions if d.action == "wrapped"]
    for d in wanted:
        found, line = d.place.found, d.line
        if line is None:
            continue
        others = [o.place.found.node for o in wanted if o.line is line and o is not d]
        whole = is_whole(found, line) and not others
        if settings.extent != "call" or whole or not isinstance(found.node, cst.Call):
            wraps[id(line)] = [(d.place.role, None, "")]
            continue
        reason = hoistable(found, line, others)
        if reason:
            d.action, d.reason = "refused", reason
        else:
            d.hoisted = True
            wraps[id(line)].append((d.place.role, found.node, new_name(f"{d.region}_output", taken)))
    return wraps


def _site(d: _Decision, reading: Reading) -> Site:
    line, end_line = reading.lines(d.place.found.node if d.line is None else d.line)
    if isinstance(d.line, cst.For):
        line = reading.lines(d.line)[0]
    anchor = d.place.anchor or dotted(getattr(d.place.found.node, "func", cst.Name("for")))
    covers = ""
    if d.action == "wrapped" and d.line is not None:
        covers = "call" if d.hoisted or is_whole(d.place.found, d.line) else "statement"
    return Site(line, end_line, d.place.rule, d.place.role, anchor, d.action, d.reason, covers)
