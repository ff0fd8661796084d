"""A group of processes that start, run and end together.

guarantees  on every way out (all fine, a failure, a timeout, an exception in a callback, SIGINT, SIGTERM) every process
            that was started is gone, with its children; if this process is killed, the kernel kills what it started.
"""

import ctypes
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, cast

from annopipe.errors import AnnopipeError
from benchmarks.signals import exit_on_signals

_GRACE_S = 3.0
_POLL_S = 0.05
_STDERR_LINES = 25
_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

OnLine = Callable[[int, str], None]


class LaunchError(AnnopipeError, RuntimeError):
    """A rank failed, or the ranks did not finish in time."""


class Member:
    """One process of the group: a session of its own, its output collected."""

    def __init__(self, rank: int, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.rank = rank
        self.timed_out = False
        self.process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_follow_parent(os.getpid()),  # noqa: PLW1509  two system calls, nothing that takes a lock
        )
        self.output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._reported = 0
        for stream in self.streams().values():
            os.set_blocking(stream.fileno(), False)

    def streams(self) -> dict[str, IO[bytes]]:
        """The process's output pipes."""
        return {"stdout": cast("IO[bytes]", self.process.stdout), "stderr": cast("IO[bytes]", self.process.stderr)}

    def read(self, name: str) -> bool:
        """Take what is in a pipe; False once the pipe has ended."""
        stream = self.streams()[name]
        while chunk := stream.read(65536):
            self.output[name] += chunk
        return chunk is None

    def new_lines(self, *, final: bool = False) -> Iterator[str]:
        """The lines of standard output that were not yielded yet; an incomplete last one only at the end."""
        text = self.output["stdout"]
        while (end := text.find(b"\n", self._reported)) >= 0:
            line = bytes(text[self._reported : end])
            self._reported = end + 1
            yield line.decode(errors="replace")
        if final and self._reported < len(text):
            line = bytes(text[self._reported :])
            self._reported = len(text)
            yield line.decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Signal the process and its children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def epitaph(self) -> str:
        """What became of the process, and the last lines it wrote to standard error."""
        code = self.process.returncode
        if self.timed_out:
            fate = "was still running"
        elif code < 0:
            fate = f"was killed by {signal.Signals(-code).name}"
        else:
            fate = f"exited with code {code}"
        lines = self.output["stderr"].decode(errors="replace").splitlines()[-_STDERR_LINES:]
        said = "".join(f"\n    {line}" for line in lines) or " nothing"
        return f"rank {self.rank} {fate}; the end of its standard error:{said}"


def run_group(
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    *,
    what: str,
    timeout_s: float,
    on_line: OnLine | None = None,
) -> list[str]:
    """Run one command per rank to the end, side by side.

    Args:
        commands: one command line per rank.
        environments: one environment per rank, whole.
        what: the name of the program, for messages.
        timeout_s: how long the group may take.
        on_line: called with (0, line) for each line that rank 0 prints, as it comes.

    Returns:
        What each rank wrote to standard output.

    Raises:
        LaunchError: a rank ended with an exit code other than 0, or the time was up.
    """
    with exit_on_signals(), _ended_together() as members:
        deadline = time.monotonic() + timeout_s
        for rank, (argv, env) in enumerate(zip(commands, environments, strict=True)):
            members.append(Member(rank, argv, env))
        if _follow(members, deadline, on_line):
            return [member.output["stdout"].decode(errors="replace") for member in members]
        failed = [member for member in members if member.process.returncode]
        if not failed:
            failed = [member for member in members if member.timed_out]
            _stop(failed, signal.SIGABRT)  # Python's fault handler, where it is on, writes where the rank hangs
    happened = f"not finished after {timeout_s:g} s" if failed[0].timed_out else "failed, and the others were stopped"
    start = f"{what}: rank {' and '.join(str(member.rank) for member in failed)} of {len(members)} {happened}"
    raise LaunchError("\n".join([start, *(member.epitaph() for member in failed)]))


def _follow(members: Sequence[Member], deadline: float, on_line: OnLine | None) -> bool:
    """Collect output until all ranks have ended well (True), one has failed, or the time is up (False)."""
    with selectors.DefaultSelector() as selector:
        for member in members:
            for name, stream in member.streams().items():
                selector.register(stream, selectors.EVENT_READ, (member, name))
        while True:
            # Exit codes first: what a rank wrote before it ended is then read below, before this returns.
            codes = [member.process.poll() for member in members]
            for key, _ in selector.select(0 if all(code == 0 for code in codes) else _POLL_S):
                member, name = key.data
                if not member.read(name):
                    selector.unregister(key.fileobj)
            done = all(code == 0 for code in codes)
            if on_line is not None:
                for line in members[0].new_lines(final=done):
                    on_line(0, line)
            if done:
                return True
            if any(codes):
                return False
            if time.monotonic() > deadline:
                for member in members:
                    member.timed_out = member.process.poll() is None
                return all(member.process.returncode == 0 for member in members)
            if not selector.get_map():
                time.sleep(_POLL_S)


@contextmanager
def _ended_together() -> Iterator[list[Member]]:
    members: list[Member] = []
    try:
        yield members
    finally:
        _stop([member for member in members if member.process.poll() is None], signal.SIGTERM)
        for member in members:
            member.signal(signal.SIGKILL)  # what its children did not obey, and what they are if it ended well
            member.process.wait()
            for name, stream in member.streams().items():
                member.read(name)
                stream.close()


def _stop(members: Sequence[Member], number: signal.Signals) -> None:
    """Signal these processes, and give them a moment to end."""
    for member in members:
        member.signal(number)
    deadline = time.monotonic() + _GRACE_S
    while any(member.process.poll() is None for member in members) and time.monotonic() < deadline:
        for member in members:
            for name in member.streams():
                member.read(name)
        time.sleep(_POLL_S / 5)


def _follow_parent(parent: int) -> Callable[[], None]:
    """What a new process does first: ask the kernel to be killed when its parent ends, and write no core file."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if _PRCTL is not None:
            _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it ended before the kernel knew
                os._exit(1)

    return prepare
