"""``capture_graph``: a stage graph whose runs of computation are CUDA graphs, and what became of each."""

import collections
import dataclasses
from collections.abc import Collection, Iterable

from annopipe.capturing.cuda import CudaRecorder
from annopipe.capturing.report import CaptureReport, RunReport
from annopipe.capturing.runs import find_runs
from annopipe.capturing.tape import Recorder, Tape
from annopipe.capturing.writing import HANDLE, Writer
from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph, body

__all__ = [
    "CapturedGraph",
    "capture_graph",
    "captured",
    "captured_device",
    "check_captured",
    "check_one_stream",
    "new_recorder",
]


class CapturedGraph(StageGraph):
    """A stage graph, ready to run, whose runs of computation are recorded in the first call and replayed later.

    Attributes:
        report: what is captured, and what is not, and why; of a run that could not be recorded, after the first call.
    """

    def __init__(self, graph: StageGraph, runs: tuple[RunReport, ...], eager: dict[str, int], tape: Tape) -> None:
        super().__init__(
            graph.graph,
            graph.inputs,
            graph.outputs,
            attributes=graph.attributes,
            guards=graph.guards,
            around=graph.around,
        )
        self._runs, self._eager, self._tape = runs, eager, tape

    @property
    def report(self) -> CaptureReport:
        """See above."""
        segments = iter(self._tape.segments)
        rows = (row if row.reason else dataclasses.replace(row, reason=next(segments).reason) for row in self._runs)
        return CaptureReport(tuple(rows), self._eager)


def captured(graph: StageGraph, recorder: Recorder, lent: Collection[str] = ()) -> CapturedGraph:
    """The graph with what is worth it captured.

    Args:
        graph: in the order in which it runs; stretches of it may be compiled.
        recorder: one for all graphs whose calls follow each other.
        lent: the roles of output ports whose values are of no use after the next call, so that they need no copy.
    """
    place(graph)
    runs = find_runs(graph, recorder.device)
    writer = Writer(graph, runs, lent)
    written = writer.written()
    tape = Tape(recorder, writer.segments)
    attributes = {**graph.attributes, HANDLE: tape} if writer.segments else graph.attributes
    made = StageGraph(
        written, graph.inputs, graph.outputs, attributes=attributes, guards=graph.guards, around=graph.around
    )
    return CapturedGraph(made, tuple(writer.reports), dict(collections.Counter(runs.reasons.values())), tape)


def capture_graph(graph: StageGraph) -> CapturedGraph:
    """Have runs of a graph's computation captured as CUDA graphs; communication and host reads stay in their order.

    A run is computation between communication whose sizes are known. It is recorded in the first call, and replayed in
    later ones with one launch: the same kernels, so the same bits. Values that the replay reads and that are not
    parameters are copied in, and results that outlive the call are copied out; ``report`` says how much that is, and
    what is not captured, and why. Parameters may change, and be replaced (then all is recorded anew).

    Args:
        graph: of a module on a GPU; it may be compiled (``annopipe.compile_graph``).

    Raises:
        GraphError: not a stage graph, one that does not run on a GPU, or one on several CUDA streams.

    >>> import torch, annopipe as ap
    >>> graphs = ap.trace(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    >>> try:
    ...     ap.capture_graph(graphs.forward)
    ... except ap.GraphError as error:
    ...     print(error)
    CUDA graphs run on a GPU, and this graph runs on cpu: move the module there before it is traced, or do not capture
    """
    if not isinstance(graph, StageGraph):
        raise GraphError(f"capture_graph takes a stage graph, got {type(graph).__name__}: pass graphs.forward")
    check_captured([graph])
    check_one_stream(not any(meta.tag_stream(node) for node in body(graph.graph)))
    return captured(graph, new_recorder())


def new_recorder() -> Recorder:
    """What captures runs on this rank's device, with a pool of memory of its own."""
    return CudaRecorder()


def captured_device() -> str:
    """The type of the devices whose computation can be captured."""
    return CudaRecorder.device


def check_captured(graphs: Iterable[StageGraph]) -> None:
    """Raises GraphError when a graph does not run on a GPU."""
    for graph in graphs:
        devices = sorted({port.device for port in graph.inputs if port.device})
        if devices and captured_device() not in devices:
            raise GraphError(
                f"CUDA graphs run on a GPU, and this graph runs on {' and '.join(devices)}: move the module there "
                "before it is traced, or do not capture"
            )


def check_one_stream(is_one: object) -> None:
    """Raises GraphError for a graph that would run on several CUDA streams."""
    if not is_one:
        raise GraphError(
            "a captured graph runs on one CUDA stream, and regions or the plan put nodes on others: leave out stream= "
            "of ap.region and streams= of ap.overlap, or do not capture"
        )
