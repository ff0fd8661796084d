"""Score trials, and move their actions, on several processes, in the order in which they were given.

The processes are started as ``python -m annopipe.tuning.workers``: unlike those of ``multiprocessing`` they never
import the caller's own program, so that a script needs no ``if __name__ == "__main__"``. What goes between them is
pickled; both ends are ours.
"""

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from annopipe.errors import PipelineError
from annopipe.tuning.reordering.job import Reordering
from annopipe.tuning.trial import Score, Trial, scored
from annopipe.tuning.workload import Workload

__all__ = ["Workers"]


class Workers:
    """So many processes that score trials of one workload; with 1 it is this process.

    A context manager: at its end no process is left.
    """

    def __init__(self, work: Workload, count: int) -> None:
        self._work = work
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(count if count > 1 else 0):
            command = [sys.executable, "-m", "annopipe.tuning.workers"]
            # In a session of its own, an interrupt reaches this process alone, which then ends the others.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(), start_new_session=True
            )
            self._processes.append(process)
            self._put(process, work)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def scores(self, trials: Sequence[Trial]) -> list[Score]:
        """What each trial came to, in the order of the trials.

        Raises PipelineError when a process has ended.
        """
        return self._answers(trials)

    def reordered(self, jobs: Sequence[Reordering]) -> list[tuple[Trial, Score]]:
        """What moving actions came to, in the order of the jobs.

        Raises PipelineError when a process has ended.
        """
        return self._answers(jobs)

    def _answers(self, jobs: Sequence[Trial | Reordering]) -> list[Any]:
        if not self._processes:
            return [_answer(self._work, job) for job in jobs]
        # Every process gets every so many-th job: which one does which does not depend on how fast it is.
        shares = [jobs[index :: len(self._processes)] for index in range(len(self._processes))]
        for process, share in zip(self._processes, shares, strict=True):
            self._put(process, list(share))
        answers = [self._get(process) for process in self._processes]
        return [answers[index % len(answers)][index // len(answers)] for index in range(len(jobs))]

    @staticmethod
    def _put(process: "subprocess.Popen[bytes]", value: object) -> None:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # that it has ended is said when its answer is asked for
                pickle.dump(value, process.stdin)
                process.stdin.flush()

    @staticmethod
    def _get(process: "subprocess.Popen[bytes]") -> list[Any]:
        try:
            answer: list[Any] = pickle.load(process.stdout)  # type: ignore[arg-type]  # noqa: S301 - our own process
        except EOFError:
            raise PipelineError(
                f"a process of the search has ended with {process.wait()}; its own messages say why, and workers=1 "
                "searches in this process"
            ) from None
        return answer


def _environment() -> dict[str, str]:
    """Ours, and the way to this annopipe, wherever the process is started."""
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def _answer(work: Workload, job: Trial | Reordering) -> Any:
    return scored(work, job) if isinstance(job, Trial) else job.run(work)


def _serve(given: BinaryIO, answers: BinaryIO) -> None:
    with contextlib.suppress(EOFError, BrokenPipeError):
        work: Workload = pickle.load(given)  # noqa: S301 - from our own parent
        while True:
            jobs: list[Trial | Reordering] = pickle.load(given)  # noqa: S301
            pickle.dump([_answer(work, job) for job in jobs], answers)
            answers.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
