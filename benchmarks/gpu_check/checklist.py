"""A list of checks that run one after the other; one that fails, or breaks, does not keep the others from running."""

import dataclasses
import time
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["Checklist", "Found"]


@dataclasses.dataclass(frozen=True)
class Found:
    """What a check found: whether all is well, a sentence for the table, and numbers and the like for the JSON."""

    ok: bool
    detail: str
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)


class Checklist:
    """Runs checks and reports each as plain data.

    >>> checks = Checklist("toy", lambda result: print(result["check"], result["ok"], result["detail"]))
    >>> checks.check("division", lambda: Found(1 / 0 > 0, "never said"))
    division False ZeroDivisionError: division by zero
    >>> checks.check("sum", lambda: Found(1 + 1 == 2, "1 + 1 is 2"))
    sum True 1 + 1 is 2
    """

    def __init__(self, group: str, report: Callable[[dict[str, Any]], None]) -> None:
        self._group = group
        self._report = report

    def check(self, name: str, run: Callable[[], Found]) -> None:
        """Run one check and report it."""
        started = time.perf_counter()
        trace = ""
        try:
            found = run()
        except Exception as error:  # noqa: BLE001 - whatever it was, the check has failed, and the next one may tell why
            lines = str(error).strip().splitlines() or [""]
            found, trace = Found(ok=False, detail=f"{type(error).__name__}: {lines[0]}"), traceback.format_exc()
        result = {"group": self._group, "check": name, "seconds": round(time.perf_counter() - started, 2)}
        self._report({**result, **dataclasses.asdict(found), **({"trace": trace} if trace else {})})
