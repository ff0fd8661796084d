"""``python -m benchmarks.gpu_check``: run the groups, print one table; exit code 1 if a check failed."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from annopipe.errors import AnnopipeError
from annopipe.simulation.files import refuse_unwritable, write_text
from benchmarks.launch import LaunchError, run_ranks
from benchmarks.pair.report import table

__all__ = ["main"]

_LIMITS_S = {"alone": 60.0, "kernels": 70.0, "captured": 70.0, "experts": 110.0, "copies": 80.0}  # of a group
_BUDGET_S = 230.0  # of all of them
_TIMES_ON_CPU = 4.0  # as long, for the compiler of C++


def main() -> None:
    """Run the checks and print one table; exit code 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description="Check annopipe on one GPU.")
    parser.add_argument("--json", type=Path, help="write the results as JSON too, again after each check")
    parser.add_argument(
        "--group", action="append", choices=tuple(_LIMITS_S), help="run this group only; may be given more than once"
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu runs the same checks without a GPU, to test the script",
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "gpu_check: no GPU here (torch.cuda.is_available()); --device cpu tests the script itself\n")
    if arguments.json is not None:
        try:
            refuse_unwritable(arguments.json)
        except AnnopipeError as error:
            parser.exit(2, f"gpu_check: {error}\n")
    report = _Report(arguments.json)
    for group in arguments.group or _LIMITS_S:
        _run_group(group, arguments.device, report)
    print(report.text())
    if not report.all_well:
        raise SystemExit(1)


class _Report:
    """What the groups tell, line by line."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._started = time.monotonic()
        self._found: dict[str, Any] = {"machine": {}, "seconds": 0.0, "checks": [], "pair": {}, "kernels": ""}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def all_well(self) -> bool:
        return bool(self._found["checks"]) and all(check["ok"] for check in self._found["checks"])

    def line(self, _rank: int, line: str) -> None:
        """Take a line of a worker's output."""
        kind, _, content = line.partition(":")
        if kind == "machine":
            self._found["machine"] = json.loads(content)
        elif kind == "result":
            self.add(json.loads(content))

    def add(self, check: dict[str, Any]) -> None:
        """Take the result of one check."""
        for name in ("pair", "kernels"):
            self._found[name] = check.get("figures", {}).pop(name, self._found[name])
        self._found["checks"].append(check)
        self._found["seconds"] = round(self.seconds, 1)
        print(f"{self.seconds:5.0f} s  {check['group']}: {check['check']}", file=sys.stderr, flush=True)
        if self._path is not None:
            write_text(self._path, json.dumps(self._found, indent=1) + "\n")

    def text(self) -> str:
        """The machine, the table of checks, and those of the kernels and of the overlap job if they ran."""
        machine = ", ".join(f"{name} {value}" for name, value in self._found["machine"].items())
        rows = [
            (c["group"], c["check"], "ok" if c["ok"] else "FAILED", c["seconds"], c["detail"])
            for c in self._found["checks"]
        ]
        parts = [f"{machine}; {self.seconds:.0f} s", tabulate(rows, headers=("group", "check", "", "s", "found"))]
        parts += [self._found["kernels"]] if self._found["kernels"] else []
        parts += [table([self._found["pair"]])] if self._found["pair"] else []
        return "\n\n".join(parts)


def _run_group(group: str, device: str, report: _Report) -> None:
    """Run a group in a process of its own; if that crashes or hangs, say so in the table."""
    failed = {"group": group, "check": "(process)", "ok": False}
    times = 1.0 if device == "cuda" else _TIMES_ON_CPU
    limit_s = min(times * _LIMITS_S[group], times * _BUDGET_S - report.seconds)
    if limit_s < 1:
        report.add({**failed, "seconds": 0.0, "detail": "not run: the time budget was spent"})
        return
    started = report.seconds
    try:
        run_ranks("benchmarks.gpu_check.worker", 1, args=[group, device], timeout_s=limit_s, on_line=report.line)
    except LaunchError as error:
        said = [line.strip() for line in str(error).splitlines()]
        detail = said[0] if len(said) == 1 else f"{said[0]}; {said[-1]}"
        seconds = round(report.seconds - started, 2)
        report.add({**failed, "seconds": seconds, "detail": detail, "trace": str(error)})


if __name__ == "__main__":
    main()
