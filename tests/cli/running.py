"""What a command line leaves behind."""

from typing import NamedTuple


class Result(NamedTuple):
    """What a command left: its exit code and what it wrote."""

    returncode: int
    stdout: str
    stderr: str
