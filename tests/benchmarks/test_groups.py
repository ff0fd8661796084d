"""The emulated group on two real processes, and the pinned group on this one.

Two workers (this file as a program) run every scenario once and write down what they saw; each test reads one entry.
Times are only bounded from the side that a slow machine cannot violate, or by the best of several tries.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from annopipe.errors import PipelineError
from benchmarks.groups import emulated, gloo, pinned
from benchmarks.launch import end_rank

OPS = torch.ops._c10d_functional
RANKS = 2
FAST = emulated.Link(bandwidth_bytes_per_s=1e12)
EXPECTED_S = 0.1  # what one timed message takes: 2 MB to the other rank
TIMED = emulated.Link(bandwidth_bytes_per_s=2e6 / EXPECTED_S)
SPLITS = {
    "even": [[2, 2], [2, 2]],
    "uneven": [[3, 1], [2, 5]],
    "one way": [[0, 3], [0, 2]],
    "nothing": [[0, 0], [0, 0]],
}


# What the workers do


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def exchange(x: torch.Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """Launch an all-to-all the way a traced graph does; the caller waits."""
    return OPS.all_to_all_single(x, received, sent, group.group_name)


def all_to_all_values(splits: list[list[int]]) -> list[bool]:
    """Compare with rows that say where they come from; `splits[i][j]` rows go from rank i to rank j."""
    rank = dist.get_rank()
    rows = [[i, j, k] for i in range(RANKS) for j in range(RANKS) for k in range(splits[i][j])]
    mine = torch.tensor([row for row in rows if row[0] == rank], dtype=torch.int64).view(-1, 3)
    want = torch.tensor([row for row in rows if row[1] == rank], dtype=torch.int64).view(-1, 3)
    received = [splits[i][rank] for i in range(RANKS)]
    functional = OPS.wait_tensor(exchange(mine, received, splits[rank], world()))
    eager = torch.empty_like(want)
    dist.all_to_all_single(eager, mine, received, splits[rank])
    return [torch.equal(functional, want), torch.equal(eager, want)]


def collectives(x: torch.Tensor, group: dist.ProcessGroup) -> dict[str, Callable[[], torch.Tensor]]:
    """List the launches of functional collectives other than all-to-all."""
    name = group.group_name
    return {
        "all-gather": partial(OPS.all_gather_into_tensor, x, RANKS, name),
        "reduce-scatter": partial(OPS.reduce_scatter_tensor, x, "sum", RANKS, name),
        "all-reduce": partial(OPS.all_reduce, x, "sum", name),
        "broadcast": partial(OPS.broadcast, x, 1, name),
    }


def other_values() -> dict[str, bool]:
    """Compare every other functional collective with plain gloo."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(dist.get_rank()))
    ours, plain = collectives(x, world()), collectives(x, dist.new_group(backend="gloo"))
    return {kind: torch.equal(OPS.wait_tensor(ours[kind]()), OPS.wait_tensor(plain[kind]())) for kind in ours}


def eager_values() -> dict[str, object]:
    """Call what user code and the agreement between ranks call."""
    rank = dist.get_rank()
    gathered: list[object] = [None] * RANKS
    dist.all_gather_object(gathered, {"rank": rank})
    shared = [f"from {rank}"]
    dist.broadcast_object_list(shared, src=1)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    return {"gathered": gathered, "shared": shared, "total": total.item()}


def passed_on() -> dict[str, Any]:
    """What goes to gloo as it is."""
    mine, rank = torch.tensor([float(dist.get_rank())]), dist.get_rank()
    parts = [torch.zeros(1) for _ in range(RANKS)]
    found: dict[str, Any] = {}
    dist.gather(mine, parts if rank == 0 else None, dst=0)
    found["gather"] = [part.item() for part in parts] if rank == 0 else [0.0, 1.0]
    own = torch.zeros(1)
    dist.scatter(own, [torch.tensor([5.0]), torch.tensor([6.0])] if rank == 0 else None, src=0)
    found["scatter"] = own.item() - rank
    total = mine.clone()
    dist.reduce(total, dst=1)
    found["reduce"] = total.item() if rank == 1 else 1.0
    if rank == 0:
        dist.send(torch.tensor([7.0]), 1)
    else:
        dist.recv(own)
    found["from any rank"] = own.item() if rank == 1 else 7.0
    return found


def gradient() -> bool:
    """Send 1 row and receive 3, or the other way round; gradients travel back."""
    sent = [1, 3] if dist.get_rank() == 0 else [2, 2]
    received = [1, 2] if dist.get_rank() == 0 else [3, 2]
    x = torch.ones(4, 2, requires_grad=True)
    fc.all_to_all_single_autograd(x, received, sent, world()).mul(dist.get_rank() + 1).sum().backward()
    want = torch.repeat_interleave(torch.tensor([1.0, 2.0]), torch.tensor(sent))[:, None].expand(4, 2)
    return x.grad is not None and torch.equal(x.grad, want)


def seconds(body: Callable[[], object], tries: int = 3) -> list[float]:
    """Time the body, both ranks starting together."""
    taken = []
    for _ in range(tries):
        dist.barrier()
        start = time.perf_counter()
        body()
        taken.append(time.perf_counter() - start)
    return taken


def finish(start: Callable[[], torch.Tensor]) -> torch.Tensor:
    return OPS.wait_tensor(start())


def timings() -> dict[str, list[float]]:
    """Launch and wait for messages that take EXPECTED_S each."""
    group = emulated.create(bandwidth_bytes_per_s=TIMED.bandwidth_bytes_per_s)
    x = torch.randn(4000, 250)  # 4 MB, half of it for the other rank

    def launch() -> torch.Tensor:
        return exchange(x, [2000, 2000], [2000, 2000], group)

    def one() -> None:
        OPS.wait_tensor(launch())

    def two(first: int) -> None:
        works = [launch(), launch()]
        OPS.wait_tensor(works[first])
        OPS.wait_tensor(works[1 - first])

    def hidden() -> None:
        work = launch()
        time.sleep(EXPECTED_S)
        OPS.wait_tensor(work)

    pending: list[torch.Tensor] = []
    taken = {"launch": seconds(lambda: pending.append(launch()))}
    for work in pending:
        OPS.wait_tensor(work)
    taken |= {"one": seconds(one), "hidden": seconds(hidden)}
    taken |= {"two": seconds(partial(two, 0), tries=1), "two, second waited first": seconds(partial(two, 1), tries=1)}
    half = x[:2000]  # 2 MB
    for kind, start in collectives(half, group).items():
        taken[kind] = seconds(partial(finish, start), tries=1)
    return taken


def slow_link() -> dict[str, float]:
    """Use a link that a message takes 5 s to cross for what must not be delayed by it."""
    group = emulated.create(bandwidth_bytes_per_s=1.0, latency_s=5.0)
    alone = [emulated.create(bandwidth_bytes_per_s=1.0, latency_s=5.0, ranks=[rank]) for rank in range(RANKS)]
    gathered: list[object] = [None] * RANKS
    x = torch.ones(2, 2)
    return {
        "barrier": seconds(lambda: dist.barrier(group), tries=1)[0],
        "object gather": seconds(lambda: dist.all_gather_object(gathered, 1, group), tries=1)[0],
        "group of one": seconds(lambda: OPS.wait_tensor(exchange(x, [2], [2], alone[dist.get_rank()])), tries=1)[0],
    }


def waited_twice() -> list[bool]:
    """Wait again for a tensor, for the result of a wait, and for a work object."""
    x = torch.full((2, 1), float(dist.get_rank()))
    work = exchange(x, [1, 1], [1, 1], world())
    again = OPS.wait_tensor(OPS.wait_tensor(work))
    OPS.wait_tensor(work)
    output = torch.empty(2, 1)
    eager = dist.all_to_all_single(output, x, async_op=True)
    want = torch.tensor([[0.0], [1.0]])
    return [eager.wait(), eager.wait(), eager.is_completed(), torch.equal(again, want), torch.equal(output, want)]


def many_in_flight() -> bool:
    """Nothing but C++ holds these works and inputs when they are waited for, last one first."""
    launched = [exchange(torch.full((2, 1), float(i)), [1, 1], [1, 1], world()) for i in range(50)]
    gc.collect()
    return all(bool((OPS.wait_tensor(launched[i]) == i).all()) for i in reversed(range(50)))


def many_that_pass_on() -> int:
    """What only passes on, often: gloo frees the tensors of one work while the next is enqueued."""
    gathered: list[object] = [None] * RANKS
    for _ in range(300):
        dist.all_gather_object(gathered, "x")
        dist.barrier()
    return 300


def new_groups() -> dict[str, object]:
    """Make groups in the ways that user code does."""
    inherited = dist.new_group(backend=emulated.BACKEND)
    mesh = dist.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("ep",))
    own = emulated.create(bandwidth_bytes_per_s=7.0, latency_s=0.5)
    groups = {"inherited": inherited, "mesh": mesh.get_group("ep"), "own": own}
    try:
        dist.new_group(backend=emulated.BACKEND, pg_options="fast")
        refusal = ""
    except PipelineError as error:
        refusal = str(error)
    links = {key: [group.link.bandwidth_bytes_per_s, group.link.latency_s] for key, group in groups.items()}
    return {"links": links, "backend": dist.get_backend(own), "refusal": refusal}


def work(rank: int, store: str, results: str) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    emulated.register()
    emulated.register()  # harmless
    dist.init_process_group(
        emulated.BACKEND, store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS, pg_options=FAST
    )
    seen = {
        "splits": {name: all_to_all_values(splits) for name, splits in SPLITS.items()},
        "others": other_values(),
        "eager": eager_values(),
        "beside": passed_on(),
        "gradient": gradient(),
        "times": timings(),
        "slow link": slow_link(),
        "waited twice": waited_twice(),
        "many": many_in_flight(),
        "passed on": many_that_pass_on(),
        "groups": new_groups(),
    }
    Path(results).write_text(json.dumps(seen), encoding="utf-8")
    left = exchange(torch.ones(2, 1), [1, 1], [1, 1], world())  # never waited for: the process must still end
    dist.barrier()
    del left
    dist.destroy_process_group()
    end_rank()


# Emulated: what the workers saw


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run the workers; one dictionary per rank."""
    folder = tmp_path_factory.mktemp("groups")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-W", "ignore::FutureWarning", __file__]
    results = [folder / f"rank{rank}.json" for rank in range(RANKS)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store"), str(results[rank])],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [worker.communicate(timeout=400)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * RANKS, "\n".join(said)
    return [json.loads(path.read_text(encoding="utf-8")) for path in results]


@pytest.mark.parametrize("name", SPLITS)
def test_all_to_all_delivers_rows_to_their_rank(seen: list[dict[str, Any]], name: str) -> None:
    assert [rank["splits"][name] for rank in seen] == [[True, True]] * RANKS


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "broadcast"])
def test_other_collectives_give_what_gloo_gives(seen: list[dict[str, Any]], kind: str) -> None:
    assert [rank["others"][kind] for rank in seen] == [True] * RANKS


def test_object_collectives_and_eager_all_reduce_work(seen: list[dict[str, Any]]) -> None:
    want = {"gathered": [{"rank": 0}, {"rank": 1}], "shared": ["from 1"], "total": 3.0}
    assert [rank["eager"] for rank in seen] == [want] * RANKS


def test_what_is_passed_on_gives_what_gloo_gives(seen: list[dict[str, Any]]) -> None:
    want = {"gather": [0.0, 1.0], "scatter": 5.0, "reduce": 1.0, "from any rank": 7.0}
    assert [rank["beside"] for rank in seen] == [want] * RANKS


def test_gradients_travel_back(seen: list[dict[str, Any]]) -> None:
    assert [rank["gradient"] for rank in seen] == [True] * RANKS


def test_a_message_takes_its_bytes_over_the_bandwidth(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert min(rank["times"]["one"]) >= 0.95 * EXPECTED_S


@pytest.mark.parametrize("order", ["two", "two, second waited first"])
def test_two_messages_queue(seen: list[dict[str, Any]], order: str) -> None:
    for rank in seen:
        assert min(rank["times"][order]) >= 0.95 * 2 * EXPECTED_S


def test_computation_between_launch_and_wait_is_hidden(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert min(rank["times"]["hidden"]) < 0.9 * 2 * EXPECTED_S


def test_a_launch_returns_before_the_message_has_arrived(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert min(rank["times"]["launch"]) < 0.5 * EXPECTED_S


@pytest.mark.parametrize(
    ("kind", "messages"), [("all-gather", 1), ("reduce-scatter", 0.5), ("all-reduce", 1), ("broadcast", 1)]
)
def test_other_collectives_take_their_bytes_over_the_bandwidth(
    seen: list[dict[str, Any]], kind: str, messages: float
) -> None:
    for rank in seen:
        assert min(rank["times"][kind]) >= 0.95 * messages * EXPECTED_S


@pytest.mark.parametrize("what", ["barrier", "object gather", "group of one"])
def test_control_messages_are_not_delayed(seen: list[dict[str, Any]], what: str) -> None:
    if what == "object gather" and torch.__version__ >= "2.15":
        pytest.skip("from PyTorch 2.15 on, objects are gathered as tensors, which are delayed")
    for rank in seen:
        assert rank["slow link"][what] < 5.0


def test_waiting_again_is_harmless(seen: list[dict[str, Any]]) -> None:
    assert [rank["waited twice"] for rank in seen] == [[True] * 5] * RANKS


def test_works_live_until_they_are_waited_for(seen: list[dict[str, Any]]) -> None:
    assert [rank["many"] for rank in seen] == [True] * RANKS


def test_what_only_passes_on_does_not_hold_the_interpreter_lock_in_gloo(seen: list[dict[str, Any]]) -> None:
    assert [rank["passed on"] for rank in seen] == [300] * RANKS  # it hung now and then


def test_a_group_without_options_has_the_link_of_the_default_group(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["groups"]["links"]["inherited"] == rank["groups"]["links"]["mesh"] == [1e12, 0.0]


def test_a_created_group_has_its_own_link(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["groups"]["links"]["own"] == [7.0, 0.5]
        assert rank["groups"]["backend"] == "emulated"


def test_other_options_are_refused(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert "needs pg_options=emulated.Link(bandwidth_bytes_per_s=...), not 'fast'" in rank["groups"]["refusal"]


# Emulated: no processes needed


@pytest.mark.parametrize(
    ("kind", "rows_out", "rows_in", "splits", "rank", "want"),
    [
        ("all-to-all", 5, 7, ([1, 4], [2, 5]), 0, 5 * 8),  # 4 rows received, 5 sent
        ("all-to-all", 5, 7, ([1, 4], [2, 5]), 1, 2 * 8),  # 1 row received, 2 sent
        ("all-to-all", 6, 6, ([], []), 0, 3 * 8),
        ("all-to-all", 0, 0, ([0, 0], [0, 0]), 0, 0),
        ("all-gather", 8, 4, ([], []), 0, 4 * 8),
        ("reduce-scatter", 4, 8, ([], []), 0, 4 * 8),
        ("all-reduce", 4, 4, ([], []), 0, 4 * 8),
        ("broadcast", 4, 4, ([], []), 0, 4 * 8),
    ],
)
def test_bytes_on_link_counts_what_crosses(
    kind: Any, rows_out: int, rows_in: int, splits: tuple[list[int], list[int]], rank: int, want: int
) -> None:
    outputs, inputs = [torch.empty(rows_out, 2)], [torch.empty(rows_in, 2)]
    collective = gloo.Collective(kind, outputs, inputs, dist.Work, *splits)
    assert emulated.bytes_on_link(collective, rank=rank, size=2) == want


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan")])
def test_a_link_without_bandwidth_is_refused(bandwidth: float) -> None:
    with pytest.raises(PipelineError, match=r"bandwidth above 0 bytes/s, not"):
        emulated.Link(bandwidth_bytes_per_s=bandwidth)


@pytest.mark.parametrize("latency", [-1.0, float("inf"), float("nan")])
def test_a_link_with_impossible_latency_is_refused(latency: float) -> None:
    with pytest.raises(PipelineError, match=r"finite latency of 0 s or more, not"):
        emulated.Link(bandwidth_bytes_per_s=1.0, latency_s=latency)


def test_create_without_a_default_group_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"emulated.create needs a default process group"):
        emulated.create(bandwidth_bytes_per_s=1.0)
    with pytest.raises(PipelineError, match=r"pinned.create needs a default process group"):
        pinned.create()


# Pinned


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """Make a default group of one rank."""
    pinned.register()
    dist.init_process_group(pinned.BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    yield world()
    dist.destroy_process_group()


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [5, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_pinned_all_to_all_returns_what_was_sent(
    group: dist.ProcessGroup, device: str, rows: int, dtype: torch.dtype
) -> None:
    x = torch.arange(rows * 3, device=device).view(rows, 3).to(dtype)
    work = exchange(x, [rows], [rows], group)
    assert torch.equal(OPS.wait_tensor(work), x)
    assert torch.equal(OPS.wait_tensor(work), x)


@pytest.mark.parametrize("device", DEVICES)
def test_pinned_messages_in_flight_do_not_overwrite_each_other(group: dist.ProcessGroup, device: str) -> None:
    rows = [1, 300, 2, 5000, 7]  # the staging buffer grows twice
    works = [exchange(torch.full((n, 4), float(n), device=device), [n], [n], group) for n in rows]
    for n, work in reversed(list(zip(rows, works, strict=True))):
        assert torch.equal(OPS.wait_tensor(work), torch.full((n, 4), float(n), device=device))


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "broadcast"])
def test_pinned_collectives_of_one_rank_keep_values(group: dist.ProcessGroup, kind: str) -> None:
    x = torch.randn(4, 3)
    name = group.group_name
    launches = {
        "all-gather": partial(OPS.all_gather_into_tensor, x, 1, name),
        "reduce-scatter": partial(OPS.reduce_scatter_tensor, x, "sum", 1, name),
        "all-reduce": partial(OPS.all_reduce, x, "sum", name),
        "broadcast": partial(OPS.broadcast, x, 0, name),
    }
    assert torch.equal(OPS.wait_tensor(launches[kind]()), x)


def test_pinned_group_serves_barriers_objects_and_new_groups(group: dist.ProcessGroup) -> None:
    dist.barrier()
    gathered: list[object] = [None]
    dist.all_gather_object(gathered, "hello")
    shared = ["hello"]
    dist.broadcast_object_list(shared)
    assert gathered == shared == ["hello"]
    other = pinned.create()
    assert other.group_name != group.group_name
    assert torch.equal(OPS.wait_tensor(exchange(torch.ones(2, 2), [2], [2], other)), torch.ones(2, 2))


def test_pinned_exchange_leaves_no_autograd_history(group: dist.ProcessGroup) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    received = torch.empty(2, 2)
    dist.all_to_all_single(received, x)
    assert not received.requires_grad
    fc.all_to_all_single_autograd(x, [2], [2], group).mul(3).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2, 2), 3.0))


def test_pinned_refuses_splits_that_do_not_add_up(group: dist.ProcessGroup) -> None:
    with pytest.raises(PipelineError, match=r"the output is \(1, 3\) torch.float32 on cpu and the input \(2, 3\)"):
        exchange(torch.ones(2, 3), [1], [2], group)


def test_pinned_refuses_options(group: dist.ProcessGroup) -> None:
    with pytest.raises(PipelineError, match=r"takes no pg_options, not 'fast'"):
        dist.new_group(backend=pinned.BACKEND, pg_options="fast")


def test_pinned_refuses_more_than_one_rank() -> None:
    pinned.register()
    with pytest.raises(PipelineError, match=r"for one rank, not 2: use NCCL"):
        dist.init_process_group(pinned.BACKEND, store=dist.HashStore(), rank=0, world_size=2)
    assert not dist.is_initialized()


def test_pinned_refuses_other_devices() -> None:
    with pytest.raises(PipelineError, match=r"not on meta"):
        pinned.CopyLane.on(torch.device("meta"))


class Recorder:
    """Streams that write down what they are told, and whether the output has been written by then."""

    def __init__(self, output: torch.Tensor) -> None:
        self.log: list[str] = []
        self._output = output

    def note(self, what: str) -> None:
        self.log.append(f"{what}: {'copied' if self._output.any() else 'not copied'}")

    def current_stream(self, device: torch.device) -> "RecordedStream":
        return RecordedStream("main", self)

    @contextmanager
    def stream(self, stream: "RecordedStream") -> Iterator[None]:
        self.note(f"enter {stream.name}")
        yield
        self.note(f"leave {stream.name}")


class RecordedStream:
    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name = name
        self._recorder = recorder

    def wait_stream(self, other: "RecordedStream") -> None:
        self._recorder.note(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        self._recorder.note(f"{self.name} records")
        return "event"

    def wait_event(self, event: str) -> None:
        self._recorder.note(f"{self.name} waits for {event}")


def test_pinned_copies_run_on_the_side_stream_between_the_two_orderings() -> None:
    output = torch.zeros(3)
    recorder = Recorder(output)
    lane = pinned.CopyLane(torch.device("cpu"), recorder, RecordedStream("side", recorder))
    work = lane.launch([output], [torch.ones(3)])
    work.wait()
    work.wait()
    assert recorder.log == [
        "side waits for main: not copied",
        "enter side: not copied",
        "leave side: copied",
        "side records: copied",
        "main waits for event: copied",
        "main waits for event: copied",
    ]


def test_a_python_group_knows_the_store_in_which_its_ranks_met() -> None:
    emulated.register()
    dist.init_process_group("emulated", store=dist.HashStore(), rank=0, world_size=1, pg_options=FAST)
    try:
        store = world().get_group_store()
        store.set("key", "value")
        assert store.get("key") == b"value"
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    work(int(sys.argv[1]), *sys.argv[2:])
