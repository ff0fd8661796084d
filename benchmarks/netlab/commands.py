"""Run `ip` and `tc`."""

import subprocess
from collections.abc import Sequence

from benchmarks.netlab.errors import NetLabError


def run(argv: Sequence[str]) -> str:
    """Run a command and return what it prints; a failure is a NetLabError with the command and its own words."""
    result = attempt(argv)
    if result.returncode:
        said = result.stderr.strip() or result.stdout.strip() or f"exit code {result.returncode}"
        raise NetLabError(f"`{' '.join(argv)}` failed: {said}")
    return result.stdout


def attempt(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that may fail."""
    try:
        return subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise NetLabError(f"{argv[0]} is not installed: install iproute2") from error
