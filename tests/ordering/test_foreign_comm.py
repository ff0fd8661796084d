"""A foreign asynchronous collective is overlapped once it is declared, and a fence until then; real ranks over gloo."""

import textwrap

import pytest

from tests.ordering.rank_programs import Outcome, outputs_of, run_programs

pytestmark = pytest.mark.slow

_PRELUDE = """
import torch, torch.distributed as dist, annopipe as ap
from annopipe.graphs.meta import placed
from benchmarks.launch import end_rank
from tests.ordering import foreign_ops as ops
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.group.WORLD
torch.manual_seed(0)

class Case:
    '''A traced layer, its combined graph with values, and what eager gives.'''

    def __init__(self, shape):
        self.layer = ops.Layer(shape, world.group_name)
        self.x, self.y = torch.randn(2, 48, 32, generator=torch.Generator().manual_seed(rank)).unbind(0)
        self.graphs = ap.trace(self.layer, (self.x.clone().requires_grad_(),))
        self.both = ap.multiplex(self.graphs.backward, self.graphs.forward, lanes=("B", "F"))
        bound = self.graphs.bind(self.layer)
        self.saved = {**bound, **self.graphs.bind_inputs(self.x)}
        self.saved |= self.graphs.forward(self.saved)
        self.saved["tangent.output"] = torch.ones(48, 32)
        second = {**bound, **self.graphs.bind_inputs(self.y)}
        self.values = {**ap.into_lane(self.saved, "B"), **ap.into_lane(second, "F")}

    def check(self, result):
        leaf = self.x.clone().requires_grad_()
        names = dict(self.layer.named_parameters())
        expected = torch.autograd.grad(self.layer(leaf), [leaf, *names.values()], torch.ones(48, 32))
        own = self.graphs.parameter_gradients(ap.out_of_lane(result, "B"))
        assert torch.equal(result["F.output"], self.layer(self.y))
        assert torch.equal(result["B.input_grad.x"], expected[0])
        assert all(torch.equal(own[n], e) for n, e in zip(names, expected[1:], strict=True))

    def plan(self, policy):
        rows = ap.region_table(self.both)
        costs = {placed(row.node).key: 1e-3 if row.kind == "launch" else 1e-4 for row in rows}
        return ap.overlap(self.both, policy=policy, costs=costs, group=world)

def kinds(graph):
    found = [row.kind for row in ap.region_table(graph)]
    return found.count("launch"), found.count("wait")
"""


DECLARATIONS = {
    "one": "ap.register_comm(ops.start, wait='foreign::join')",
    "one, nothing": "ap.register_comm(ops.start, wait=ops.settle)",
    "several": "ap.register_comm(torch.ops.foreign.start_with_handle, wait=ops.join_handle, group='group')",
    "nothing": "ap.register_comm(ops.start_with_handle, wait=torch.ops.foreign.sync.default, group=world)",
}
MEASURED = ("several", "nothing")

HIDES = """
assert kinds(case.graphs.forward) == kinds(case.graphs.backward) == (4, 4)
before = case.plan("sequential").timeline.hidden_comm
for policy in ("sequential", "alternate", "list"):
    plan = case.plan(policy)
    case.check(plan.run(case.values))
    if policy != "sequential":
        assert plan.timeline.hidden_comm > before + 1e-3, str(plan.timeline)
halves = case.graphs.backward_input(case.saved)
halves |= case.graphs.backward_weight({**case.saved, **halves})
whole = case.graphs.backward(case.saved)
assert all(torch.equal(halves[name], value) for name, value in whole.items())
print("fine")
"""
IS_MEASURED = """
costs = ap.costs.measure(case.both, case.values, world, repeat=2, warmup=1)
assert len(costs.issue) == 8
for key, issued in costs.issue.items():
    assert costs.seconds[key] + issued >= 0.9 * ops.DELAY_S, (key, costs.seconds[key], issued)
assert not ops._flying, "every transfer that measuring started was waited for"
plan = ap.overlap(case.both, policy="list", costs=costs, group=world)
assert plan.timeline.hidden_comm > 0
case.check(plan.run(case.values))
print("fine")
"""
IS_A_FENCE = """
case = Case("one")
assert kinds(case.graphs.forward) == kinds(case.graphs.backward) == (0, 0)
for policy in ("sequential", "alternate", "list"):
    plan = case.plan(policy)
    fences = [n.index for n in plan.problem.nodes if n.name[2:].startswith(("start", "join"))]
    assert len(fences) == 16
    for fence in fences:
        before = plan.indices[: plan.indices.index(fence)]
        assert sorted(before) == list(range(fence)), (policy, fence)
    case.check(plan.run(case.values))
print("fine")
"""


def declared(shape: str, program: str) -> str:
    """The program on a case whose operators are declared, and are not any more behind it."""
    return f"with {DECLARATIONS[shape]}:\n    case = Case({shape!r})\n" + textwrap.indent(program, "    ")


@pytest.fixture(scope="module", name="outcomes")
def _outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    programs = {f"hides, {shape}": declared(shape, HIDES) for shape in DECLARATIONS}
    programs |= {f"is measured, {shape}": declared(shape, IS_MEASURED) for shape in MEASURED}
    return run_programs(_PRELUDE, {**programs, "is a fence": IS_A_FENCE}, tmp_path_factory.mktemp("foreign"))


@pytest.mark.parametrize("shape", DECLARATIONS)
def test_a_declared_pair_hides_behind_computation_and_results_are_those_of_eager(
    shape: str, outcomes: list[Outcome]
) -> None:
    assert outputs_of(f"hides, {shape}", outcomes) == ["fine\n", "fine\n"]


@pytest.mark.parametrize("shape", MEASURED)
def test_a_declared_pair_is_measured_from_its_launch_to_its_wait(shape: str, outcomes: list[Outcome]) -> None:
    assert outputs_of(f"is measured, {shape}", outcomes) == ["fine\n", "fine\n"]


def test_nothing_moves_across_what_is_not_declared(outcomes: list[Outcome]) -> None:
    assert outputs_of("is a fence", outcomes) == ["fine\n", "fine\n"]
