"""Ranks agree on one order, or all of them are told why not; on real processes over gloo.

One pair of ranks runs the programs of all tests but those that break the group.
"""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from benchmarks.launch import LaunchError, run_ranks
from tests.ordering.rank_programs import Outcome, outputs_of, run_programs

Test = TypeVar("Test", bound=Callable[..., None])
# What every program starts with; ``both`` is a combined graph whose lanes have two launches each.
PRELUDE = """
import torch, torch.distributed as dist, annopipe as ap
import torch.distributed._functional_collectives as fc
from torch import nn
from benchmarks.launch import end_rank
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
class Stage(nn.Module):
    def __init__(self, extra=0):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4)); self.extra = extra
    def forward(self, x):
        for _ in range(2):
            with ap.comm("dispatch"):
                x = fc.all_to_all_single_autograd(x @ self.weight, None, None, dist.group.WORLD)
        for _ in range(self.extra):
            x = x + 1
        return x
def pair(extra=0):
    stage = Stage(extra); x = torch.full((2, 4), float(rank + 1))
    graphs = ap.trace(stage, (x.clone().requires_grad_(),))
    both = ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))
    values = {**graphs.bind(stage), **graphs.bind_inputs(x)}
    saved = {**values, **graphs.forward(values), "tangent.output": torch.ones(2, 4)}
    return both, {**{f"B.{k}": v for k, v in saved.items()}, **{f"F.{k}": v for k, v in values.items()}}
def ranked(problem):  # another order on every rank
    return problem.topological([float((n.index * 7 + 3 * rank) % 11) for n in problem.nodes])
"""
PROGRAMS: dict[str, str] = {}


def on_two_ranks(program: str) -> Callable[[Test], Test]:
    """Have two ranks run ``program`` behind ``PRELUDE``; what each of them prints is the fixture ``outputs``."""

    def register(test: Test) -> Test:
        PROGRAMS[test.__name__] = program
        return test

    return register


@pytest.fixture(scope="module", name="outcomes")
def _outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    return run_programs(PRELUDE, PROGRAMS, tmp_path_factory.mktemp("agreement"))


@pytest.fixture(name="outputs")
def _outputs(outcomes: list[Outcome], request: pytest.FixtureRequest) -> list[str]:
    return outputs_of(request.node.name, outcomes)


def _run(program: str, folder: Path, ranks: int = 2) -> list[str]:
    """What ranks of its own print when they run ``program`` behind ``PRELUDE``."""
    text = f"{PRELUDE}\n{textwrap.dedent(program)}\ndist.barrier(); end_rank()\n"
    (folder / "agreement_program.py").write_text(text)
    return run_ranks("agreement_program", ranks, env={"PYTHONPATH": str(folder)}, timeout_s=400)


@on_two_ranks(
    """
    both, values = pair()
    plan = ap.overlap(both, policy=ranked, group=dist.group.WORLD)
    expected = both(values)
    found = plan.run(values)
    assert all(torch.equal(found[k], v) for k, v in expected.items())
    print(plan.indices)
    """
)
def test_ranks_with_other_preferences_end_with_the_order_of_the_first(outputs: list[str]) -> None:
    assert outputs[0] == outputs[1] != ""


@on_two_ranks(
    """
    both, values = pair(extra=3 * rank)
    plan = ap.overlap(both, policy=ranked, group=dist.group.WORLD)
    expected = both(values)
    found = plan.run(values)
    assert all(torch.equal(found[k], v) for k, v in expected.items())
    from annopipe.ordering.agreement import launch_tokens
    print(len(plan.order) > 0, launch_tokens(plan.problem, plan.indices))
    """
)
def test_ranks_with_different_graphs_agree_on_the_sequence_of_collectives(outputs: list[str]) -> None:
    assert outputs[0] == outputs[1] != ""


@on_two_ranks(
    """
    def first_f_or_first_b(problem):
        wanted = "F" if rank else "B"
        return problem.topological([0.0 if n.lane == wanted else 1.0 for n in problem.nodes])
    both, values = pair()
    plan = ap.overlap(both, policy=first_f_or_first_b)
    try:
        plan.run(values)
    except ap.OrderError as error:
        print(error)
    """
)
def test_a_disagreement_is_found_before_the_first_run_on_every_rank(outputs: list[str]) -> None:
    assert all("would issue different sequences of collectives and hang" in text for text in outputs)


@on_two_ranks(
    """
    def fails(problem):
        if rank == 1:
            raise ValueError("no idea")
        return problem.nodes
    both, values = pair()
    try:
        ap.overlap(both, policy=fails, group=dist.group.WORLD)
    except ap.OrderError as error:
        print(error)
    """
)
def test_a_policy_that_fails_on_one_rank_stops_all_of_them_at_once(outputs: list[str]) -> None:
    assert all("policy 'fails' failed: ValueError: no idea" in text for text in outputs)
    assert "planning failed on 1 of 2 ranks of the group; rank 1" in outputs[0]


@on_two_ranks(
    """
    both, values = pair()
    try:
        ap.overlap(both, policy="list", costs={} if rank else None, group=dist.group.WORLD)
    except ap.AnnopipeError as error:
        print(type(error).__name__, error)
    """
)
def test_missing_costs_on_one_rank_stop_all_of_them_at_once(outputs: list[str]) -> None:
    assert outputs[0].startswith("OrderError planning failed on 1 of 2 ranks of the group; rank 1: CostError")
    assert outputs[1].startswith("CostError no cost for ")


@on_two_ranks(
    """
    from annopipe.graphs.stage_graph import body
    from annopipe.graphs.meta import placed
    both, values = pair()
    plan = ap.overlap(both, policy="sequential" if rank else "alternate", group=dist.group.WORLD)
    plan.run(values)
    assert [placed(node).key for node in body(plan.graph.graph)] == list(plan.order)
    print(plan.policy, plan.order)
    """
)
def test_ranks_with_other_policies_run_the_order_of_the_first(outputs: list[str]) -> None:
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("alternate")


@on_two_ranks(
    """
    class Reduce(nn.Module):
        def forward(self, x):
            with ap.comm("d"):
                op = "sum" if rank else "max"
                return fc.all_reduce(x, op, dist.group.WORLD) * 1
    graphs = ap.trace(Reduce(), (torch.ones(2),))
    for group in (dist.group.WORLD, None):
        try:
            ap.overlap(graphs.forward, policy="alternate", group=group).run({"input.x": torch.ones(2)})
        except ap.OrderError as error:
            print(error)
    """
)
def test_another_collective_in_the_same_region_is_refused(outputs: list[str]) -> None:
    for text in outputs:
        assert "have different collectives" in text
        assert "would issue different sequences of collectives" in text


def test_a_rank_that_runs_no_plan_is_noticed_within_the_time_limit(tmp_path: Path) -> None:
    program = """
        import time
        from datetime import timedelta
        from annopipe.ordering import gathering
        gathering.CHECK_TIMEOUT = timedelta(seconds=1)
        both, values = pair()
        plan = ap.overlap(both, policy="alternate")
        if rank == 0:
            try:
                plan.run(values)
            except ap.OrderError as error:
                print(error)
        else:
            time.sleep(4)
        print("done", flush=True)
        import os; os._exit(0)  # the group is broken now
        """
    outputs = _run(program, tmp_path)
    assert "compared their sequence of collectives within 1 s" in outputs[0]


@on_two_ranks(
    """
    class Longer(Stage):
        def forward(self, x):
            x = super().forward(x)
            with ap.comm("combine"):
                return fc.all_to_all_single_autograd(x, None, None, dist.group.WORLD)
    if rank == 1:
        Stage = Longer
    x = torch.ones(2, 4)
    graphs = ap.trace(Stage(), (x,))
    try:
        ap.overlap(graphs.forward, policy="alternate", group=dist.group.WORLD)
    except ap.OrderError as error:
        print(error)
    """
)
def test_different_collectives_are_refused_on_every_rank(outputs: list[str]) -> None:
    assert all("rank 0 and rank 1 of the group have different collectives" in text for text in outputs)


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="rank 1"):
        _run("import sys\nif rank == 1:\n    sys.exit(3)\ndist.barrier()\n", tmp_path)


@on_two_ranks(
    """
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    class Both(nn.Module):
        def forward(self, x):
            with ap.nano_batch(0), ap.comm("a"):
                a = fc.all_reduce(x, "sum", first) * 1
            with ap.nano_batch(1), ap.comm("b"):
                b = fc.all_reduce(x * 2, "sum", second) * 1
            return a, b
    graphs = ap.trace(Both(), (torch.ones(2),))
    plan = ap.overlap(graphs.forward, policy=lambda p: p.topological([(-1) ** rank * n.index for n in p.nodes]))
    try:
        plan.run({"input.x": torch.ones(2)})
    except ap.OrderError as error:
        print(error)
    """
)
def test_crossed_groups_of_the_same_ranks_are_refused(outputs: list[str]) -> None:
    assert all("would issue different sequences of collectives" in text for text in outputs)


@on_two_ranks(
    """
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    class Both(nn.Module):
        def forward(self, x):
            if rank:
                x = fc.all_reduce(x, "sum", alone) * 1
            return fc.all_reduce(x, "sum", dist.group.WORLD) * 1
    graphs = ap.trace(Both(), (torch.ones(2),))
    print(ap.overlap(graphs.forward, policy="sequential").run({"input.x": torch.ones(2)})["output"].tolist())
    """
)
def test_a_group_of_ones_own_changes_nothing(outputs: list[str]) -> None:
    assert [text.strip() for text in outputs] == ["[2.0, 2.0]"] * 2


@on_two_ranks(
    """
    from annopipe.models import tiny_stage
    stage, (x,) = tiny_stage()
    graphs = ap.trace(stage, (x,))
    x = torch.randn(x.shape, generator=torch.Generator().manual_seed(rank))
    world, counts = dist.group.WORLD, dist.new_group([0, 1])
    plans = [ap.overlap(graphs.forward, "alternate", group=world, counts_group=c) for c in (None, counts)]
    values = {**graphs.bind(stage), **graphs.bind_inputs(x)}
    plain, apart = (plan.run(values) for plan in plans)
    print(all(torch.equal(v, apart[k]) for k, v in plain.items() if isinstance(v, torch.Tensor)))
    for plan in plans:
        print([n.queue == counts.group_name for n in plan.problem.nodes if n.kind == "launch"])
    """
)
def test_counts_travel_on_a_group_of_their_own(outputs: list[str]) -> None:
    once, apart = "False, False, False", "True, False, False"
    assert [text.split("\n")[:3] for text in outputs] == [["True", f"[{once}, {once}]", f"[{apart}, {apart}]"]] * 2


@on_two_ranks(
    """
    from annopipe.models import tiny_stage
    graphs = ap.trace(*tiny_stage())
    alone = [dist.new_group([0]), dist.new_group([1])]
    for group in (alone[rank], alone[1 - rank]):
        try:
            ap.overlap(graphs.forward, policy="alternate", counts_group=group)
        except ap.OrderError as error:
            print(error)
    """
)
def test_a_counts_group_of_other_ranks_is_refused(outputs: list[str]) -> None:
    for rank, text in enumerate(outputs):
        first, second = text.strip().split("\n")
        assert f"exchanges counts between ranks [0, 1], and counts_group has ranks [{rank}]" in first
        assert "give a process group, as dist.new_group returns to its members" in second


def test_data_that_the_host_reads_through_a_later_layer_is_no_exchange_of_counts(tmp_path) -> None:
    outputs = _run(
        """
        class Layers(nn.Module):
            def forward(self, x, ids):
                with ap.comm("combine"):
                    x = fc.all_reduce(x, "sum", dist.group.WORLD) * 1
                with ap.region("router"):
                    here = (x > 0).sum().item()
                with ap.comm("counts"):
                    ids = fc.all_reduce(ids, "sum", dist.group.WORLD) * 1
                total = ids.sum().item()
                with ap.comm("dispatch"):
                    return fc.all_reduce(x * here + total, "sum", dist.group.WORLD) * 1
        x, ids = torch.randn(4, 4), torch.arange(3)
        graphs = ap.trace(Layers(), (x, ids))
        counts = dist.new_group([0, 1])
        values = graphs.bind_inputs(x, ids)
        for policy in ("sequential", "alternate", "auto", "list"):
            plan = ap.overlap(graphs.forward, policy, group=dist.group.WORLD, counts_group=counts)
            assert torch.equal(plan.run(values)["output"], Layers()(x, ids))
            print([n.region for n in plan.problem.nodes if n.queue == counts.group_name])
        """,
        tmp_path,
    )
    assert [text.split("\n")[:4] for text in outputs] == [["['counts']"] * 4] * 2


def test_a_group_that_is_none_of_this_rank_is_refused(tmp_path) -> None:
    outputs = _run(
        """
        both, values = pair()
        alone = [dist.new_group([0]), dist.new_group([1])]
        for group in (alone[1 - rank], "ep", 5):
            try:
                ap.overlap(both, policy="alternate", group=group)
            except ap.OrderError as error:
                print(error)
        """,
        tmp_path,
    )
    assert all(text.count("give a process group that this rank is in") == 3 for text in outputs)
