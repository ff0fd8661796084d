"""OverlapPlan: one combined graph in the order that a policy chose, ready to run, simulate and look at."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from annopipe.capturing import graphs as capturing
from annopipe.capturing.graphs import CapturedGraph, capture_graph
from annopipe.capturing.report import CaptureReport
from annopipe.compiling.graphs import CompiledGraph, check_one_stream, compile_graph
from annopipe.compiling.report import CompileReport
from annopipe.costs import roofline
from annopipe.costs.node_costs import NodeCosts, as_costs
from annopipe.errors import CostError
from annopipe.graphs.host_copies import with_host_copies
from annopipe.graphs.stage_graph import StageGraph
from annopipe.graphs.streams import StreamPlan
from annopipe.ordering.agreement import check_same_sequence
from annopipe.ordering.bounds import LowerBound, lower_bound
from annopipe.ordering.problem import OverlapProblem
from annopipe.ordering.streams import issued_on_streams, streams_of
from annopipe.simulation import Network, ProgramTimeline, Task, run

__all__ = ["OverlapPlan", "with_costs"]


class OverlapPlan:
    """The result of ``ap.overlap``.

    Attributes:
        graph: the stage graph with its nodes in the chosen order.
        order: the keys of its nodes, in that order ("F.mm_3").
        policy: the name of the policy that chose it, or the pattern.
        reason: why this order, if the policy says ("auto" does).
        problem: what the policy saw.  indices: the order as positions in ``problem.nodes``.
    """

    def __init__(
        self, graph: StageGraph, problem: OverlapProblem, indices: Sequence[int], policy: str, reason: str = ""
    ) -> None:
        self.graph = graph
        self.problem = problem
        self.indices = tuple(indices)
        self.policy = policy
        self.reason = reason
        self._checked = False
        self._captured: CapturedGraph | None = None

    @property
    def order(self) -> tuple[str, ...]:
        """The keys of the nodes in the order in which they run."""
        return tuple(self.problem.nodes[index].name for index in self.indices)

    @functools.cached_property
    def timeline(self) -> ProgramTimeline:
        """The simulated timeline: makespan, hidden and exposed communication, and what blocks each exposed piece.

        A plan that was made without costs gets the roofline costs of the local device.
        """
        return run(self.program(), self.problem.network)

    @functools.cached_property
    def lower_bound(self) -> LowerBound:
        """Seconds that no order of this graph can beat, with the three bounds it is made of.

        A plan that was made without costs gets the roofline costs of the local device.
        """
        self._need_costs()
        return lower_bound(self.problem).of_order(self.timeline.makespan)

    @functools.cached_property
    def streams(self) -> StreamPlan | None:
        """Which CUDA stream each node runs on, and what it waits for; None where all run on the calling stream."""
        return streams_of(self.problem, self.indices, self.graph)

    @functools.cached_property
    def executable(self) -> StageGraph:
        """The graph as it runs on its device: on CUDA with the calls for its streams, and host reads cut in two."""
        if self._captured is not None:
            return with_host_copies(self._captured)
        compiled = self.compile_report is not None
        return with_host_copies(self.graph if compiled else issued_on_streams(self.graph, self.streams))

    @property
    def is_on_one_stream(self) -> bool:
        """Whether all nodes run on the stream that the graph is called on, as they always do on a processor."""
        return issued_on_streams(self.graph, self.streams) is self.graph

    @property
    def network(self) -> Network:
        """How transfers share the network, as the plan's costs say."""
        return self.problem.network

    def program(self, costs: NodeCosts | Mapping[str, float] | None = None) -> list[Task]:
        """The simulation's tasks in the plan's order, with the plan's costs or others.

        Raises:
            CostError: the costs lack a node.
        """
        if costs is not None:
            return with_costs(self.problem, as_costs(costs)).program(self.indices)
        self._need_costs()
        return self.problem.program(self.indices)

    def check_ranks(self) -> None:
        """Compare the sequence of collectives across each process group: once, before the first run; ``run`` does it.

        Raises:
            OrderError: the ranks would issue different sequences, which would hang.
        """
        if not self._checked:
            check_same_sequence(self.problem, self.indices)
            self._checked = True

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the graph in the plan's order on values by port name; returns values by output port name.

        Raises:
            GraphError: a port has no value or one that does not fit.
            OrderError: at the first run, when ranks disagree about the order of collectives.
        """
        self.check_ranks()
        return self.executable(values)

    @property
    def program_order(self) -> tuple[str, ...]:
        """The keys of the nodes in program order."""
        return tuple(node.name for node in self.problem.nodes)

    @property
    def compile_report(self) -> CompileReport | None:
        """What is compiled, and what is not and why; None for a plan that runs operation by operation."""
        return self.graph.report if isinstance(self.graph, CompiledGraph) else None

    def compiled(self, *, helpers: int | None = None) -> "OverlapPlan":
        """The plan with its stretches of computation compiled by Inductor; see ``annopipe.compile_graph``.

        Launches, waits and host reads run in exactly the plan's order.

        Raises:
            GraphError: there is no C++ compiler, or the plan runs on several CUDA streams.
        """
        check_one_stream(self.is_on_one_stream)
        return self.with_compiled(compile_graph(self.graph, self.program_order, helpers=helpers))

    def with_compiled(self, graph: CompiledGraph) -> "OverlapPlan":
        """The plan with its graph in compiled form."""
        plan = OverlapPlan(graph, self.problem, self.indices, self.policy, self.reason)
        plan._checked = self._checked
        return plan

    @property
    def capture_report(self) -> CaptureReport | None:
        """What is captured as CUDA graphs, and what is not and why; None for a plan of which nothing is to be."""
        return None if self._captured is None else self._captured.report

    def captured(self) -> "OverlapPlan":
        """The plan with runs of its computation captured as CUDA graphs; see ``annopipe.capture_graph``.

        Of a compiled plan, what is compiled is captured. The order stays the plan's.

        Raises:
            GraphError: the plan does not run on a GPU, or on several CUDA streams.
        """
        capturing.check_one_stream(self.is_on_one_stream)
        return self.with_captured(capture_graph(self.graph))

    def with_captured(self, graph: CapturedGraph) -> "OverlapPlan":
        """The plan that runs a captured form of its graph."""
        plan = OverlapPlan(self.graph, self.problem, self.indices, self.policy, self.reason)
        plan._checked, plan._captured = self._checked, graph
        return plan

    def __repr__(self) -> str:
        why = f"; {self.reason}" if self.reason else ""
        return f"OverlapPlan({self.policy}, {len(self.indices)} nodes, lanes {', '.join(self.problem.lanes)}{why})"

    def _need_costs(self) -> None:
        if not self.problem.has_costs:
            graph = self.graph.source if isinstance(self.graph, CompiledGraph) else self.graph
            self.problem = with_costs(self.problem, roofline(graph))


def with_costs(problem: OverlapProblem, costs: NodeCosts) -> OverlapProblem:
    """The problem with other costs.

    Raises:
        CostError: nodes have no cost.
    """
    missing = [n.name for n in problem.nodes if n.kind != "wait" and n.name not in costs.seconds]
    if missing:
        raise CostError(
            f"no cost for {len(missing)} of {len(problem.nodes)} nodes, such as {', '.join(missing[:3])}: the costs "
            "belong to another graph; in a multiplexed graph use costs.in_lane(lane) for the costs of one part"
        )
    return problem.with_costs(costs.seconds, costs.latency, costs.issue, costs.network)
