"""Many small programs on one pair of ranks: starting ranks takes seconds, a program a fraction of one."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from benchmarks.launch import run_ranks

__all__ = ["Outcome", "outputs_of", "run_programs"]

Outcome = dict[str, tuple[str, str]]  # by program: what one rank printed, and the traceback if it failed

_RUN_ALL = """
import contextlib, io, json, traceback
found = {}
for name, text in json.loads(PROGRAMS).items():
    failure = ""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            exec(compile(text, name, "exec"), dict(globals()))
        except Exception:
            failure = traceback.format_exc()
    found[name] = said.getvalue(), failure
    dist.barrier()
print(json.dumps(found))
dist.barrier()
end_rank()
"""


def run_programs(prelude: str, programs: Mapping[str, str], folder: Path) -> list[Outcome]:
    """What two ranks make of the programs, one after the other in one process each; none may break their group.

    Args:
        prelude: comes before each; it initialises torch.distributed as ``dist`` and imports ``end_rank``.
    """
    dedented = {name: textwrap.dedent(text) for name, text in programs.items()}
    text = f"{prelude}\nPROGRAMS = {json.dumps(dedented)!r}\n{_RUN_ALL}"
    (folder / "rank_programs_module.py").write_text(text)
    outputs = run_ranks("rank_programs_module", 2, env={"PYTHONPATH": str(folder)}, timeout_s=400)
    return [json.loads(text.splitlines()[-1]) for text in outputs]


def outputs_of(name: str, outcomes: list[Outcome]) -> list[str]:
    """What each rank printed in one program; an AssertionError with the traceback if it failed on a rank."""
    for rank, outcome in enumerate(outcomes):
        assert not outcome[name][1], f"rank {rank}: {outcome[name][1]}"
    return [outcome[name][0] for outcome in outcomes]
