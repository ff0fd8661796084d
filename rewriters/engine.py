"""Rewrite one file: read it, let the selected rules work one after the other, and check the result."""

import dataclasses
from collections.abc import Mapping, Sequence

from annopipe.errors import RewriteError
from rewriters.reading import Reading, read
from rewriters.rules import RULES, Rule
from rewriters.safety import check_output
from rewriters.settings import Settings
from rewriters.sites import Site
from rewriters.source import SKIP_FILE, Source, generated_from, parse
from rewriters.stripping import strip_tags
from rewriters.tagging import tag

__all__ = ["FileResult", "check_settings", "rewrite"]

# What undoes the others comes alone; reports come first, while lines are the file's; conversions come before tags, so
# that a converted tag counts as one.
_BEFORE, _BEHIND = ("AP302", "AP404", "AP201"), ("AP202", "AP401", "AP402", "AP403")
_ALONE = "AP301"


@dataclasses.dataclass(frozen=True, slots=True)
class FileResult:
    """What became of a file.

    Args:
        before: its bytes.
        after: what they are to be; the same if there is nothing to do.
        sites: every place that a rule has looked at.
        error: why the file could not be rewritten, or "".
    """

    path: str
    before: bytes
    after: bytes
    sites: tuple[Site, ...]
    error: str = ""

    @property
    def changed(self) -> bool:
        """Whether there is something to write."""
        return self.before != self.after

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of sites by action."""
        actions = [site.action for site in self.sites]
        return {action: actions.count(action) for action in dict.fromkeys(actions)}


def check_settings(settings: Settings) -> None:
    """Refuse selections that make no sense.

    Raises:
        RewriteError: a code that no rule has, rules that undo each other, an unsafe rule without permission.
    """
    for code in (*settings.select, *settings.ignore, *(c for _, codes in settings.per_file_ignores for c in codes)):
        if not any(known.startswith(code) for known in RULES):
            raise RewriteError(f"no rule {code!r}: annopipe rewrite --list shows them")
    wanted = [code for code in RULES if settings.wants(code)]
    undo = [code for code in wanted if code in (_ALONE, "AP202")]
    if undo and len([code for code in wanted if code != "AP302"]) > 1:
        raise RewriteError(f"{undo[0]} undoes other rules: select it alone")
    unsafe = [code for code in wanted if not RULES[code].safe]
    if unsafe and not settings.unsafe:
        raise RewriteError(f"{unsafe[0]} ({RULES[unsafe[0]].name}) changes what the code does: it needs --unsafe")


def rewrite(data: bytes, settings: Settings | None = None, path: str = "<input>") -> FileResult:
    r"""Rewrite the bytes of a file; whatever is wrong with the file is in the result.

    Raises:
        RewriteError: the settings make no sense.

    >>> code = b"class Block:\n    def forward(self, x):\n        return self.experts(x)\n"
    >>> print(rewrite(code).after.decode())
    import annopipe
    class Block:
        def forward(self, x):
            with annopipe.region("experts"):
                return self.experts(x)
    <BLANKLINE>
    """
    settings = (settings or Settings()).for_file(path)
    check_settings(settings)
    rules = [rule for rule in RULES.values() if settings.wants(rule.code)]
    try:
        text = data.decode("utf-8", errors="ignore")
        if not any(_may_apply(rule, text, settings) for rule in rules) or SKIP_FILE.search(text):
            return FileResult(path, data, data, ())
        source = parse(data)
        reading, sites = _run(read(source), settings)
        after = reading.source
        if sites and (origin := generated_from(text)) is not None and not settings.include_generated:
            return FileResult(path, data, data, _all_refused(sites, origin))
        if after.data != data:
            _check(source, reading, settings, rules)
    except RewriteError as error:
        return FileResult(path, data, data, (), str(error))
    return FileResult(path, data, after.data, sites)


def _may_apply(rule: Rule, text: str, settings: Settings) -> bool:
    """Whether a file can hold what a rule looks for: a quick look, before anything is parsed."""
    if rule.follow is not None:
        return False  # only behind another
    if rule.find is not None:
        return "experts" in text
    if rule.anchors:
        parts = {anchor.name.rpartition(".")[2].rstrip(")") for anchor in rule.anchors}
        own = {name.rpartition(".")[2] for _, name, _ in settings.anchors}
        return any(part in text for part in parts | own)
    return not rule.triggers or any(trigger in text for trigger in rule.triggers)


def _run(reading: Reading, settings: Settings) -> tuple[Reading, tuple[Site, ...]]:
    """The file as it is to be, read again if it has changed, and the sites."""
    sites: list[Site] = []
    tagging = [rule for rule in RULES.values() if rule.tags]
    steps: list[Rule | None] = [RULES[code] for code in (_ALONE, *_BEFORE) if code in RULES and settings.wants(code)]
    if any(settings.wants(rule.code) for rule in tagging):
        steps.append(None)
    steps += [RULES[code] for code in _BEHIND if code in RULES and settings.wants(code)]
    for rule in steps:
        if rule is None:
            outcome = tag(reading, settings, tagging)
        elif rule.apply is not None:
            outcome = rule.apply(reading, settings)
        else:
            continue
        sites += outcome.sites
        if outcome.tree is not reading.tree:
            reading = read(parse(outcome.tree.bytes, trusted=True))
    return reading, tuple(sorted(sites))


def _all_refused(sites: Sequence[Site], origin: str) -> tuple[Site, ...]:
    """A generated file is not written to: the next generation would undo it."""
    what = f"edit {origin}, from which this file is generated" if origin else "the file is generated: edit its source"
    return tuple(
        dataclasses.replace(site, action="refused", reason=f"{what}, or give --include-generated")
        if site.changes
        else site
        for site in sites
    )


def _check(source: Source, reading: Reading, settings: Settings, rules: Sequence[Rule]) -> None:
    """The safety gate: what must hold of an edit, or the file stays as it is."""
    after = reading.source.data
    safe = settings.extent != "call" and all(rule.safe for rule in rules)
    check_output(source.data, after, neutral=safe)
    again, _ = _run(dataclasses.replace(reading, numbered=False), settings)
    if again.source.data != after:
        raise RewriteError("a second run would change the file again: nothing was written; please report this")
    adds_tags = safe and all(rule.tags for rule in rules if rule.code != "AP302")
    if adds_tags and b"annopipe" not in source.data and strip_tags(reading).tree.bytes != source.data:
        raise RewriteError("the tags cannot be taken out again to the byte: nothing was written; please report this")
