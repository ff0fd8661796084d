"""What a rule says about one place of a file: a site, and what was done with it."""

import dataclasses
from typing import Literal

__all__ = ["Action", "Site"]

Action = Literal["wrapped", "converted", "removed", "already", "skipped", "refused", "reported"]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place that a rule has to do with.

    Args:
        line: where it begins, from 1; 0 for the file as a whole.
        end_line: where it ends.
        rule: the code of the rule.
        role: what the place is in the model ("experts"), or "" where that makes no sense.
        anchor: the text by which it was found ("self.experts").
        action: "wrapped", "converted" and "removed" change the file; "already": nothing to do; "skipped": a comment
            says so; "refused": somebody has to look; "reported": a finding that no rule can mend.
        reason: why, for the last four.
        covers: what a tag covers: "call" alone, or the "statement", which does more than the call.

    >>> print(Site(12, 14, "AP102", "experts", "self.experts", "wrapped"))
    12-14: AP102 experts: self.experts: wrapped
    """

    line: int
    end_line: int
    rule: str
    role: str
    anchor: str
    action: Action
    reason: str = ""
    covers: str = ""

    @property
    def changes(self) -> bool:
        """Whether the file changes here."""
        return self.action in ("wrapped", "converted", "removed")

    def __str__(self) -> str:
        lines = f"{self.line}" if self.line == self.end_line else f"{self.line}-{self.end_line}"
        what = ": ".join(filter(None, (f"{self.rule} {self.role}".strip(), self.anchor, self.action)))
        return f"{lines}: {what}" + (f" ({self.reason})" if self.reason else "")
