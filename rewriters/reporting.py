"""What a run has found, as a diff, as lines, as JSON."""

import collections
import difflib
import json
from collections.abc import Iterable, Iterator, Sequence

from rewriters.engine import FileResult
from rewriters.rules import RULES, Rule

__all__ = ["diff", "explain", "json_records", "listing", "summary"]

_ORDER = ("wrapped", "converted", "removed", "already", "skipped", "refused", "reported")


def diff(result: FileResult) -> str:
    """The change of a file as a unified diff."""
    before, after = (data.decode(errors="replace").splitlines(keepends=True) for data in (result.before, result.after))
    lines = difflib.unified_diff(before, after, f"a/{result.path.lstrip('/')}", f"b/{result.path.lstrip('/')}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def json_records(results: Iterable[FileResult]) -> str:
    """One record per site, and one with the error of a file that could not be rewritten."""
    records = []
    for result in results:
        for site in result.sites:
            records.append(
                {
                    "path": result.path,
                    "line": site.line,
                    "end_line": site.end_line,
                    "rule": site.rule,
                    "role": site.role,
                    "anchor": site.anchor,
                    "action": site.action,
                    "reason": site.reason,
                    "covers": site.covers,
                }
            )
        if result.error:
            records.append({"path": result.path, "action": "failed", "reason": result.error})
    return json.dumps(records, indent=1)


def summary(results: Sequence[FileResult], *, written: bool = False) -> str:
    """One line with the number of sites by action; refusals are always named."""
    counts: collections.Counter[str] = collections.Counter()
    for result in results:
        counts.update(result.counts)
    parts = [f"{counts[action]} {action}" for action in _ORDER if counts[action] or action == "refused"]
    failed = sum(bool(result.error) for result in results)
    what = "changed" if written else "to change"
    changed = sum(result.changed for result in results)
    return f"{len(results)} files, {changed} {what}: {', '.join(parts)}" + (f"; {failed} failed" if failed else "")


def listing() -> str:
    """All rules, one a line."""
    rows = [(rule.code, rule.name, "" if rule.safe else "unsafe", rule.summary) for rule in RULES.values()]
    return "\n".join(f"{code}  {name:<14} {unsafe:<7} {text}" for code, name, unsafe, text in sorted(rows))


def explain(rule: Rule) -> str:
    """The page of a rule: why, and its examples."""
    return "\n".join(_page(rule))


def _page(rule: Rule) -> Iterator[str]:
    yield f"{rule.code} {rule.name} ({'safe' if rule.safe else 'unsafe: needs --unsafe'})"
    yield rule.summary
    yield f"\n{rule.why}"
    if rule.anchors:
        yield "anchors:"
        for anchor in rule.anchors:
            needs = f"  (the class has one of {', '.join(anchor.needs)})" if anchor.needs else ""
            yield f"  {anchor.name}{needs}"
        yield ""
    for before, after in rule.changes:
        yield from ("before:", _indented(before), "after:", _indented(after))
    for text in rule.leaves:
        yield from ("left alone:", _indented(text))
    for text, reason in rule.refuses:
        yield from (f"refused ({reason}):", _indented(text))


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))
