"""A file that keeps what a search has tried, so that the next run of it goes on from there.

One JSON value a line: first what it is and of which workload, then each trial with what it came to. A run that was
interrupted leaves at most one torn line, the last, which is dropped. A search that finds its trials there takes their
results and decides as it would have done: the end is the same as without an interruption.
"""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from io import FileIO
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from annopipe.errors import CostError
from annopipe.tuning.reordering.job import Reordering
from annopipe.tuning.trial import Moved, Score, Trial
from annopipe.tuning.workers import Workers
from annopipe.tuning.workload import Workload

__all__ = ["KeptWorkers", "Results"]

_VERSION = 2
_HEAD = "annopipe tune results"

Job = TypeVar("Job", Trial, Reordering)
Answer = tuple[Moved | None, Score]


class Results:
    """What such a file holds, by trial; `keep` adds to it.

    Raises CostError for a file that is none, is of another workload or another version, or has a line that is broken.
    """

    def __init__(self, path: str | PathLike[str], work: Workload) -> None:
        self._path = Path(path)
        self._head = {"what": _HEAD, "version": _VERSION, "workload": work.name, "fingerprint": _digest(work)}
        self._known: dict[str, Answer] = {}
        try:
            self._read()
        except OSError as error:
            raise CostError(f"cannot read or write results in {path}: {error.strerror}; give another path") from error

    def __len__(self) -> int:
        return len(self._known)

    def of(self, job: Trial | Reordering) -> Answer | None:
        """What is known of a trial, or of moving its actions."""
        return self._known.get(_digest(job))

    def keep(self, jobs: Sequence[Trial | Reordering], answers: Sequence[Answer]) -> None:
        """Write down what trials came to.

        Raises CostError when the file cannot be written.
        """
        lines = []
        for job, (moved, score) in zip(jobs, answers, strict=True):
            key = _digest(job)
            self._known[key] = moved, score
            trial = job if isinstance(job, Trial) else job.trial
            line = {"key": key, "name": trial.name, "score": asdict(score), "moved": asdict(moved) if moved else None}
            lines.append(json.dumps(line) + "\n")
        try:
            with self._locked() as file:
                file.write("".join(lines).encode())
        except OSError as error:
            raise CostError(f"cannot write results to {self._path}: {error.strerror}; give another path") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[FileIO]:
        """The file, which no other search reads or writes meanwhile."""
        with self._path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beginning = json.dumps(self._head).encode() + b"\n"
        with self._locked() as file:
            file.seek(0)
            found = file.readall()
            if not found or (beginning.startswith(found) and _HEAD.encode() in found):  # torn in its first line
                file.truncate(0)
                file.write(beginning)
                return
            head, *lines = found.split(b"\n")
            self._check(_parsed(head))
            for index, line in enumerate(lines[:-1], 2):
                self._know(_parsed(line), index)
            if lines and lines[-1]:  # torn: its run was interrupted while it wrote
                file.truncate(len(found) - len(lines[-1]))

    def _know(self, entry: dict[str, Any], line: int) -> None:
        try:
            self._known[entry["key"]] = _answer(entry)
        except (KeyError, TypeError, ValueError):
            raise CostError(f"{self._path}, line {line}, is no result: drop that line") from None

    def _check(self, head: dict[str, Any]) -> None:
        if head.get("what") != _HEAD:
            raise CostError(f"{self._path} has no results of annopipe tune: give the path of a new file")
        if head.get("version") != _VERSION:
            raise CostError(
                f"{self._path} has results of version {head.get('version')!r}, and this is version {_VERSION}: give "
                "the path of a new file"
            )
        if head.get("fingerprint") != self._head["fingerprint"]:
            raise CostError(
                f"{self._path} has results of another workload, {head.get('workload')!r}, or of the same with other "
                f"numbers or another limit on memory, and not of {self._head['workload']!r}: give another path"
            )


class KeptWorkers:
    """Workers that ask only for what is not known, and keep what they find."""

    def __init__(self, workers: Workers, results: Results) -> None:
        self._workers, self._results = workers, results

    def scores(self, trials: Sequence[Trial]) -> list[Score]:
        """As `Workers.scores`."""
        found = self._found(trials, lambda fresh: [(None, score) for score in self._workers.scores(fresh)])
        return [score for _, score in found]

    def reordered(self, jobs: Sequence[Reordering]) -> list[tuple[Trial, Score]]:
        """As `Workers.reordered`."""
        found = self._found(
            jobs, lambda fresh: [(trial.moved, score) for trial, score in self._workers.reordered(fresh)]
        )
        return [
            (job.trial if moved is None or moved == job.trial.moved else job.trial.with_moved(moved), score)
            for job, (moved, score) in zip(jobs, found, strict=True)
        ]

    def _found(self, jobs: Sequence[Job], ask: Callable[[Sequence[Job]], Sequence[Answer]]) -> list[Answer]:
        known = [self._results.of(job) for job in jobs]
        fresh = [job for job, answer in zip(jobs, known, strict=True) if answer is None]
        if fresh:
            self._results.keep(fresh, ask(fresh))
        return [answer for job in jobs if (answer := self._results.of(job)) is not None]


def _digest(value: Workload | Trial | Reordering) -> str:
    """The same for equal values, on every machine."""
    if isinstance(value, Workload):
        value = replace(value, name="")
    elif isinstance(value, Reordering):
        return hashlib.sha256(
            f"{_digest(value.trial)} {value.seed} {value.effort} {value.enough!r}".encode()
        ).hexdigest()
    text = json.dumps(asdict(value), sort_keys=True, default=_plain)
    text = json.dumps(json.loads(text, parse_int=float))  # 5 is 5.0
    return hashlib.sha256(text.encode()).hexdigest()


def _answer(entry: dict[str, Any]) -> Answer:
    """What a line says; KeyError, TypeError or ValueError for one that says nothing."""
    moved, score = entry["moved"], Score(**entry["score"])
    if not all(type(value) in (int, float) and value >= 0 for value in (score.makespan, score.memory, score.actions)):
        raise ValueError(score)
    return Moved(moved["start"], tuple(map(tuple, moved["ranks"]))) if moved else None, score


def _plain(value: Any) -> Any:
    """What JSON does not know: sets, and numbers of other kinds."""
    return sorted(value) if isinstance(value, frozenset) else float(value)


def _parsed(line: bytes) -> dict[str, Any]:
    """The value of a line; without entries where it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
