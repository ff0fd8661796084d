"""AP109: tag the wait of an asynchronous exchange like its launch."""

from collections.abc import Iterable, Iterator

import libcst as cst

from rewriters.names import dotted, target_names
from rewriters.reading import Found, Reading
from rewriters.rules.rule import Place, Rule
from rewriters.surroundings import statement

__all__ = ["RULE"]

_CODE = "AP109"
_WAITS = ("wait_tensor", "_WaitTensor.apply")
_ROLES = ("count", "dispatch", "combine")


def _follow(reading: Reading, launches: Iterable[Place]) -> Iterator[Place]:
    """The waits in the function of a launch, for what the launch returned."""
    by_function: dict[int, list[Place]] = {}
    for launch in launches:
        if launch.role in _ROLES:
            by_function.setdefault(_function(launch.found), []).append(launch)
    order = {id(call.node): index for index, call in enumerate(reading.calls)}
    for call in reading.calls:
        handle = _waited_for(call)
        if handle and _function(call) in by_function:
            before = [
                launch
                for launch in by_function[_function(call)]
                if order.get(id(launch.found.node), 0) < order[id(call.node)] and handle in _results(launch.found)
            ]
            if before:
                launch = max(before, key=lambda place: order.get(id(place.found.node), 0))
                yield Place(call, _CODE, launch.role, call.name)


def _waited_for(call: Found) -> str:
    if call.name.endswith(".wait"):
        return call.name.removesuffix(".wait")
    node = cst.ensure_type(call.node, cst.Call)
    if call.name.endswith(_WAITS) and node.args:
        return dotted(node.args[0].value)
    return ""


def _function(found: Found) -> int:
    return next((id(node) for node in reversed(found.stack) if isinstance(node, cst.FunctionDef)), 0)


def _results(found: Found) -> set[str]:
    line = statement(found)
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Assign):
        return {name for target in small.targets for name in target_names(target.target)}
    return set(target_names(small.target)) if isinstance(small, cst.AnnAssign) else set()


RULE = Rule(
    code=_CODE,
    name="waits",
    summary="Tag the wait of an asynchronous exchange like its launch.",
    why="""\
Launch and wait of one exchange are two places of one region. A wait is the method wait of what a tagged exchange of
the same function returned, or wait_tensor of it. A handle that goes through other functions is not followed.
""",
    follow=_follow,
    changes=(
        (
            """\
class Block(Module):
    def forward(self, x, shared):
        rows, handle = self.permute_and_all_to_all(x)  # annopipe: skip
        x, back = self.reverse_all_to_all(rows)
        shared = shared + 1
        handle.wait()
        back.wait()
        return x
""",
            """\
import annopipe
class Block(Module):
    def forward(self, x, shared):
        rows, handle = self.permute_and_all_to_all(x)  # annopipe: skip
        with annopipe.comm("combine"):
            x, back = self.reverse_all_to_all(rows)
        shared = shared + 1
        handle.wait()
        with annopipe.comm("combine"):
            back.wait()
        return x
""",
        ),
    ),
    leaves=("def f(job):\n    job.wait()\n",),
    options={"select": ("AP103", "AP109")},
)
