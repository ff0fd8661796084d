"""Who made a network namespace, read from its name alone.

Every namespace of a lab is called `apnet-PID-START-TOKEN-ROLE`. PID and START (when the kernel started that process, in
clock ticks) name one process for as long as the machine is up: a later process with the same PID is not taken for it.
"""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"(apnet-(\d+)-(\d+)-[0-9a-f]+)-(r\d+|switch)")


@dataclass(frozen=True)
class Owner:
    """A process: its PID, and when it started."""

    pid: int
    start: int

    @classmethod
    def current(cls) -> "Owner":
        """The process that runs this."""
        pid = os.getpid()
        return cls(pid, _start(pid) or 0)

    def alive(self) -> bool:
        """Whether this very process still runs; one that ended and is not yet reaped does not."""
        return _start(self.pid) == self.start

    def new_lab(self) -> str:
        """A name for a lab of this process that no other lab has."""
        return f"apnet-{self.pid}-{self.start}-{secrets.token_hex(4)}"


def labs() -> dict[str, tuple[Owner, list[str]]]:
    """Every lab on this machine: its name, its owner and its namespaces."""
    found: dict[str, tuple[Owner, list[str]]] = {}
    for path in sorted(NAMESPACES.iterdir()) if NAMESPACES.is_dir() else []:
        if match := _NAME.fullmatch(path.name):
            owner = Owner(int(match[2]), int(match[3]))
            found.setdefault(match[1], (owner, []))[1].append(path.name)
    return found


def _start(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in brackets, and may hold anything.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
