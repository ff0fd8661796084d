"""Rank program: stages whose parameters are shared among data-parallel ranks, or that are tensor-parallel.

Traced graphs beside eager, bit by bit; pipelines beside the whole model on all data. Two ranks or four.
"""

import copy
import dataclasses
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.distributed.checkpoint as checkpoints
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from tests.pipeline import fully_sharded_cases
from tests.pipeline.trial import close, refused, run_cases

WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Block(nn.Module):
    """Odd sizes, so that shards are uneven; a weight read twice, one read in a loop, a scalar, a buffer."""

    def __init__(self, width=7, inner=5):
        super().__init__()
        self.a, self.b = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.experts = nn.Parameter(torch.randn(3, width, width) / 3)
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x):
        self.calls.add_(1)
        given, x = x.dtype, x.to(self.a.weight.dtype)
        x = self.norm(self.b(F.silu(self.a(x))) + x * self.b.weight.sum()) * self.scale
        for index in range(3):
            x = F.silu(x @ self.experts[index])
        return x.to(given)


def seeded(build, seed=0):
    torch.manual_seed(seed)
    return build()


def mesh_of(mode="shard"):
    if mode == "hybrid":
        return init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=("repeat", "share"))
    return init_device_mesh("cpu", (WORLD,), mesh_dim_names=("data",))


def own_input(*shape, dtype=None):
    generator = torch.Generator().manual_seed(10 + dist.get_rank())
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def run_graphs(graphs, module, x, tangent, passed=lambda graph: graph):
    values = {**graphs.bind(module), **graphs.bind_inputs(x.detach())}
    if graphs.unshard is not None:
        values |= passed(graphs.unshard)(values)
    values |= graphs.forward(values)
    values |= {"tangent.output": tangent}
    values |= graphs.backward(values)
    if graphs.reduce_grad is not None:
        values |= passed(graphs.reduce_grad)(values)
    return values


def same_as_eager(module, x, passed=lambda graph: graph, strict=False):
    """Output, input gradient, all parameter gradients and buffers, bit by bit; returns the graphs."""
    graphs = ap.trace(module, (x,), strict=strict)
    eager = copy.deepcopy(module)
    output = eager(x)
    tangent = torch.randn_like(output)
    output.backward(tangent)
    values = run_graphs(graphs, module, x, tangent, passed)
    graphs.write_buffers(module, values)
    assert torch.equal(values["output"], output)
    assert torch.equal(values[f"input_grad.{graphs.arguments.paths[0]}"], x.grad)
    gradients = graphs.parameter_gradients(values)
    for name, parameter in eager.named_parameters():
        own, other = gradients[name], parameter.grad
        assert type(own) is type(other), name
        if isinstance(other, DTensor):
            placements = parameter.placements
            assert own.placements == placements, name
            own, other = own.to_local(), other.redistribute(placements=placements).to_local()
        assert own.dtype == other.dtype, name
        assert torch.equal(own, other), f"{name}: {(own - other).abs().max()}"
    for name, buffer in eager.named_buffers():
        assert torch.equal(local(module.get_buffer(name)), local(buffer)), name
    no_gathered_weight_is_kept(graphs, values)
    return graphs


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def no_gathered_weight_is_kept(graphs, values):
    gathered = {v.untyped_storage().data_ptr() for name, v in values.items() if name.startswith("unsharded.")}
    saved = [p.name for p in graphs.forward.outputs if p.role == "saved"]
    assert not [name for name in saved if values[name].untyped_storage().data_ptr() in gathered]


def shared_parameters_are_gathered_once_and_equal_eager():
    low = {"param_dtype": torch.bfloat16}
    options = [{}, {"mode": "replicate"}, low, {**low, "reduce_dtype": torch.float32}]
    options += [{**low, "mode": "replicate", "reduce_dtype": torch.bfloat16}]
    options += [{"mode": "hybrid"}, {**low, "mode": "hybrid"}] if WORLD == 4 else []
    for option in options:
        mode = option.get("mode", "shard")
        module = ap.shard(seeded(Block), mesh_of(mode), **option)
        graphs = same_as_eager(module, own_input(3, 7))
        parameters = len(list(module.parameters()))
        gathers = 0 if mode == "replicate" else parameters - 1  # a scalar cannot be shared
        assert (graphs.unshard.launch_count if graphs.unshard else 0) == gathers, option
        per_parameter = 2 if mode == "hybrid" else 1
        assert graphs.reduce_grad.launch_count == parameters * per_parameter, option
        others = (graphs.forward, graphs.backward, graphs.backward_input, graphs.backward_weight)
        assert not any(graph.launch_count for graph in others)
        assert {p.dtype for p in graphs.forward.inputs if p.role == "unsharded"} <= {
            option.get("param_dtype", torch.float64)
        }


def gradients_are_means_over_the_ranks():
    whole = seeded(Block)
    for rank in range(WORLD):
        generator = torch.Generator().manual_seed(10 + rank)
        (whole(torch.randn(3, 7, generator=generator)).square().sum() / WORLD).backward()
    for mode in ("shard", "replicate"):
        module = ap.shard(seeded(Block), mesh_of(), mode=mode)
        module(own_input(3, 7)).square().sum().backward()
        for (name, own), other in zip(module.named_parameters(), whole.parameters(), strict=True):
            close(own.grad.full_tensor(), other.grad, name, 1e-10)


class Gathered(nn.Module):
    """A parametrization, as users write it."""

    def forward(self, weight):
        return weight.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def parametrizations_of_users_are_traced():
    for strict in (False, True):
        module, mesh = seeded(Block), mesh_of()
        for child in (module.a, module.b, module.norm):
            for key, parameter in list(child._parameters.items()):
                child._parameters[key] = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
                parametrize.register_parametrization(child, key, Gathered(), unsafe=True)
        graphs = same_as_eager(module, own_input(3, 7), strict=strict)
        assert graphs.unshard.launch_count == 6, "b.weight is read twice and gathered once"
        assert graphs.reduce_grad.launch_count == 7


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 4 * WORLD), nn.Linear(4 * WORLD, 8)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


def tensor_parallel_modules_are_traced():
    for plan in (
        {"up": ColwiseParallel(), "down": RowwiseParallel()},
        {
            "norm": SequenceParallel(use_local_output=False),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(),
        },
    ):
        module = parallelize_module(seeded(Net), mesh_of(), plan)
        x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        graphs = same_as_eager(module, x)
        assert graphs.unshard is None
        assert graphs.forward.launch_count
        # What sequence parallelism adds up over ranks is gradients of parameters alone: once per step.
        assert (graphs.reduce_grad is not None) == ("norm" in plan)


class Context(nn.Module):
    """Attention over a sequence that the ranks share; a parameter and a buffer that are DTensors."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh, self.project = mesh, nn.Linear(8, 24)
        self.bias = nn.Parameter(distribute_tensor(torch.ones(8), mesh, [Replicate()]))
        self.register_buffer("calls", distribute_tensor(torch.zeros(2), mesh, [Replicate()]))

    def forward(self, x):
        self.calls.add_(1)
        query, *others = self.project(x).chunk(3, -1)
        sharded = [DTensor.from_local(other, self.mesh, [Shard(1)], run_check=False) for other in others]
        key, value = (s.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]) for s in sharded)
        attended = (query @ key.transpose(1, 2)).softmax(-1) @ value
        return attended + self.bias.to_local(grad_placements=[Partial()])


def context_parallel_modules_are_traced():
    module = seeded(lambda: Context(mesh_of()))
    graphs = same_as_eager(module, own_input(2, 3, 8))
    assert local(module.calls)[0] == 1
    assert graphs.unshard is None, "keys and values depend on data"
    assert graphs.forward.launch_count == 2
    assert graphs.reduce_grad.launch_count == 1


def tied_stages_stay_tied():
    mesh = mesh_of()
    for at_once in (True, False):
        first, second = tied_pair()
        for module in (nn.ModuleList([first, second]),) if at_once else (first, second):
            ap.shard(module, mesh)
        assert first._parameters["weight"] is second._parameters["weight"]
        graphs = same_as_eager(nn.Sequential(first, second), own_input(3, 4))
        assert graphs.unshard.launch_count == 1
    first, second = tied_pair()
    ap.shard(first, mesh)
    refused(
        ap.PipelineError, "sharded before with other options", lambda: ap.shard(second, mesh, param_dtype=torch.float32)
    )
    schedule = ap.schedule("zbv", ranks=1, microbatches=1)
    pipe = ap.Pipeline([first, second], schedule, alone(), squares)
    message = "1.weight is also the parameter of a module that ap.shard was called for, and is another tensor since"
    refused(ap.PipelineError, message, lambda: pipe.step(torch.ones(2, 4), target=torch.ones(2, 4)))


def tied_pair():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    return first, second


class Reader(nn.Module):
    """Reads the parameters of a module in it, which it does not call."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(7, 5), nn.Linear(7, 5)

    def forward(self, x):
        return F.linear(self.outer(x), self.inner.weight.t(), self.outer.bias.sum() + self.inner.bias.sum())


def a_forward_reads_what_an_earlier_call_has_shared():
    module = seeded(Reader)
    ap.shard(module.inner, mesh_of(), divide_by=1)
    graphs = same_as_eager(ap.shard(module, mesh_of()), own_input(3, 7))
    assert graphs.unshard.launch_count == 4


class SparseRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.ones(4, 2))

    def forward(self, indices):
        return F.embedding(indices, self.rows, sparse=True)


def ranks_that_share_otherwise_are_refused_by_name():
    mesh, is_first = mesh_of(), dist.get_rank() == 0

    def meant(module, **options):
        return lambda: ap.shard(module, mesh, **{key: value if is_first else None for key, value in options.items()})

    for key, value in (("param_dtype", torch.bfloat16), ("reduce_dtype", torch.float32), ("divide_by", 7)):
        refused(ap.PipelineError, f"of a mesh have different {key}: {value} and ", meant(Block(), **{key: value}))
    mode = "shard" if is_first else "replicate"
    refused(ap.PipelineError, "different mode: shard and replicate", lambda: ap.shard(Block(), mesh, mode=mode))
    frozen, wider = Block(), Block(inner=5 if is_first else 6)
    frozen.scale.requires_grad_(not is_first)
    refused(ap.PipelineError, "different parameter scale: torch.float64 () requires_grad=False and", meant(frozen))
    refused(ap.PipelineError, "different parameter a.weight: torch.float64 (5, 7) requires_grad=True", meant(wider))
    ignore = ["scale"] if is_first else []
    refused(ap.PipelineError, "different parameter scale: none and", lambda: ap.shard(Block(), mesh, ignore=ignore))


def stages_that_ranks_do_not_share_alike_are_refused_before_a_step():
    """What came to differ after the call, or where it sends nothing."""
    mesh, is_first, alike = mesh_of(), dist.get_rank() == 0, alone()

    def step(module, **options):
        schedule = ap.schedule("gpipe", ranks=1, microbatches=2)
        pipe = ap.Pipeline([module], schedule, alike, squares, **options)
        return lambda: pipe.step(torch.ones(4, 7), target=torch.ones(4, 7))

    with torch.device("meta"):
        empty = ap.shard(Block(), mesh, reduce_dtype=torch.bfloat16 if is_first else torch.float16)
    call = step(seeded(lambda: empty.to_empty(device="cpu")))
    refused(ap.PipelineError, "differ in stage 0, parameter scale: torch.float64 () requires_grad=True, placed", call)
    module = ap.shard(seeded(Block), mesh)
    call = step(module)
    call()
    module.a.bias.requires_grad_(is_first)
    refused(ap.PipelineError, "differ in stage 0, parameter a.bias: ", call)
    module.a.bias.requires_grad_(True)
    call()
    call = step(Summed(is_first), plan_group=dist.group.WORLD)
    refused(
        ap.PipelineError, "differ in stage 0, collective 1 of its forward: all_reduce sum of 1 torch.float64 and", call
    )


class Summed(nn.Linear):
    def __init__(self, over_ranks):
        super().__init__(7, 7)
        self.over_ranks = over_ranks

    def forward(self, x):
        x = super().forward(x)
        return x - fc.all_reduce(x.detach().sum(), "sum", dist.group.WORLD) if self.over_ranks else x


def buckets_change_no_bit():
    for mode in ("shard", "hybrid") if WORLD == 4 else ("shard", "replicate"):
        module = ap.shard(seeded(Block), mesh_of(mode), mode=mode)
        graphs = same_as_eager(module, own_input(3, 7), passed=ap.bucket)
        for graph in (graphs.unshard, graphs.reduce_grad):
            if graph is not None:
                assert ap.bucket(graph).launch_count < graph.launch_count / 2
                assert ap.bucket(graph, size_bytes=1).launch_count == graph.launch_count
    refused(ap.GraphError, "bucket takes an unshard or reduce_grad graph", lambda: ap.bucket(graphs.forward))
    refused(ap.GraphError, "size_bytes=0: give a positive number", lambda: ap.bucket(graphs.reduce_grad, size_bytes=0))


def names_and_whole_state_dicts_stay():
    plain = seeded(Block)
    module = ap.shard(seeded(Block, 5), mesh_of())
    assert list(module.state_dict()) == list(plain.state_dict())
    assert all(isinstance(p, DTensor) for p in module.parameters())
    module.load_state_dict(plain.state_dict())
    with torch.device("meta"):
        empty = Block()
    ap.shard(empty, mesh_of())
    empty.to_empty(device="cpu")
    for child in empty.modules():
        if hasattr(child, "reset_parameters"):
            child.reset_parameters()
    empty.load_state_dict(module.state_dict())
    with torch.device("meta"):
        assigned = ap.shard(Block(), mesh_of())
    assigned.load_state_dict(plain.state_dict(), assign=True)
    for name, parameter in (*empty.named_parameters(), *assigned.named_parameters()):
        assert torch.equal(parameter.full_tensor(), plain.get_parameter(name)), name
        assert parameter.to_local().numel() < parameter.numel() or not parameter.dim(), name
    x = own_input(3, 7)
    assert torch.equal(empty(x), plain(x))


def what_cannot_be_traced_is_refused():
    mesh, x = mesh_of(), own_input(3, 7)
    refused(ap.CaptureError, "use ap.shard(module.module", lambda: ap.trace(DistributedDataParallel(Block()), (x,)))
    refused(ap.CaptureError, "sharded by fully_shard", lambda: ap.trace(fully_shard(Net(), mesh=mesh), (x,)))
    column = parallelize_module(nn.Linear(7, WORLD), mesh, ColwiseParallel(use_local_output=False))
    refused(ap.CaptureError, "output is a DTensor placed", lambda: ap.trace(column, (x,)))
    refused(
        ap.CaptureError, "argument x is a DTensor", lambda: ap.trace(Block(), (distribute_tensor(x.detach(), mesh),))
    )
    refused(ap.PipelineError, "is a DTensor already", lambda: ap.shard(column, mesh))
    refused(ap.PipelineError, "which keeps its weights in a list", lambda: ap.shard(nn.LSTM(2, 2), mesh))
    refused(ap.PipelineError, "mode='half': give one of", lambda: ap.shard(Block(), mesh, mode="half"))
    refused(ap.PipelineError, "takes a mesh of 2 dimensions", lambda: ap.shard(Block(), mesh, mode="hybrid"))
    for options, said in (
        ({"mesh": dist.group.WORLD}, "the mesh is a ProcessGroup"),
        ({"param_dtype": "bfloat16"}, "'bfloat16' is no type to compute in"),
        ({"reduce_dtype": torch.int8}, "torch.int8 is no type to compute in"),
        ({"divide_by": 0}, "divide_by=0: give a number above 0"),
        ({"divide_by": "2"}, "divide_by='2': give a number"),
        ({"ignore": "scale"}, "ignore='scale' is one text"),
    ):
        refused(ap.PipelineError, said, lambda options=options: ap.shard(Block(), **{"mesh": mesh, **options}))
    refused(
        ap.PipelineError, "ignore: Block has no parameter or module c", lambda: ap.shard(Block(), mesh, ignore=["c"])
    )
    sparse, limited = nn.Embedding(4, 2, sparse=True), nn.Embedding(4, 2, max_norm=1.0)
    refused(
        ap.PipelineError, "0 is of class Embedding, whose gradient is", lambda: ap.shard(nn.Sequential(sparse), mesh)
    )
    refused(ap.PipelineError, "which changes its weight in its forward", lambda: ap.shard(limited, mesh))
    sum_of = ap.shard(SparseRows(), mesh)(torch.arange(3)).sum()
    refused(ap.PipelineError, "shape (4, 2) has a sparse gradient", sum_of.backward)
    module = ap.shard(Block(), mesh)
    graphs = ap.trace(module, (x,))
    refused(ap.CaptureError, "scale was (Replicate(),) on DeviceMesh", lambda: graphs.bind(Block()))
    part = {"output", *graphs.bind(module)}
    refused(
        ap.GraphError,
        "gathered parameters come from",
        lambda: graphs.forward({**graphs.bind_inputs(x), **dict.fromkeys(part)}),
    )


def pipelines_gather_and_reduce_once_per_step():
    """Beside the whole model in one process on all data."""
    ranks = WORLD // 2
    mesh = init_device_mesh("cpu", (ranks, 2), mesh_dim_names=("stages", "data"))
    entire = (
        mesh["stages"].get_group() if ranks > 1 else dist.new_group([dist.get_rank()], use_local_synchronization=True)
    )
    for name, mode, explicit in (("1f1b", "shard", False), ("zbv", "shard", True), ("dualpipev", "replicate", True)):
        schedule = ap.schedule(name, ranks=ranks, microbatches=4)
        placement = schedule.placement
        whole = [seeded(Block, stage) for stage in range(placement.stages)]
        here = mesh.get_local_rank("stages")
        mine = [
            ap.shard(seeded(Block, stage), mesh["data"], mode=mode) if placement.rank_of[stage] == here else None
            for stage in range(placement.stages)
        ]
        if explicit:
            schedule = schedule.lowered(parameters=True)
        pipe = ap.Pipeline(mine, schedule, entire, squares, "alternate")
        for step in range(2):
            data = torch.randn(2, 2, 8, 7, generator=torch.Generator().manual_seed(step))
            for x, y in zip(*data, strict=True):
                for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
                    value = part
                    for stage in whole:
                        value = stage(value)
                    (squares(value, target) / 2).backward()
            at = mesh.get_local_rank("data")
            pipe.step(data[0, at], target=data[1, at])
            for index, stage in enumerate(mine):
                for key, parameter in stage.named_parameters() if stage is not None else ():
                    close(parameter.grad.full_tensor(), whole[index].get_parameter(key).grad, f"{name} {key}", 1e-10)
        norm = ap.clip_grad_norm_(pipe, 0.5)
        close(norm, torch.nn.utils.clip_grad_norm_([p for stage in whole for p in stage.parameters()], 0.5), "norm")
        for index, stage in enumerate(mine):
            for key, parameter in stage.named_parameters() if stage is not None else ():
                close(parameter.grad.full_tensor(), whole[index].get_parameter(key).grad, f"clipped {key}", 1e-10)


def experts_and_dense_parameters_have_meshes_of_their_own():
    """Dense parameters are shared by all ranks, experts by the ranks that hold the same ones; or PP 2 x EP 2."""
    config = dataclasses.replace(DeepSeekV3Config.tiny(), layers=2, dense_layers=0)
    mesh = init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=("copies", "experts"))
    group, rank = mesh["experts"].get_group(), dist.get_rank()
    whole = DeepSeekV3Stage(config, dtype=torch.float64)
    stage = DeepSeekV3Stage(config, group=group, dtype=torch.float64)
    for name, module in stage.named_modules():
        if name.endswith(".experts"):
            ap.shard(module, mesh["copies"], divide_by=WORLD)
    ap.shard(stage, mesh_of())
    data = torch.randn(WORLD, 2, 5, config.hidden, generator=torch.Generator().manual_seed(2))
    for part in data:
        (whole(part).square().sum() / WORLD).backward()
    pipe = ap.Pipeline([stage], ap.schedule("1f1b", ranks=1, microbatches=2), alone(), lambda y, _: y.square().sum())
    pipe.step(data[rank], target=data[rank])
    for name, parameter in stage.named_parameters():
        expected = whole.get_parameter(name).grad
        if ".experts." in name:
            expected = expected.chunk(2)[mesh.get_local_rank("experts")]
        close(parameter.grad.full_tensor(), expected, name, 1e-10)


def alone():
    return dist.new_group([dist.get_rank()], use_local_synchronization=True)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.w = nn.Linear(7, 5), nn.Parameter(torch.randn(5, 7))

    def inner(self, x):
        return torch.tanh(self.a(x)) @ self.w

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) + x


def checkpoints_compute_again_and_do_not_gather_again():
    graphs = same_as_eager(ap.shard(seeded(Checkpointed), mesh_of()), own_input(3, 7), strict=True)
    assert graphs.unshard.launch_count == 3
    assert not graphs.forward.launch_count + graphs.backward.launch_count
    assert len([p for p in graphs.forward.outputs if p.role == "saved"]) == 1


def optimizers_checkpoints_and_frozen_parameters_work():
    with tempfile.TemporaryDirectory() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared)
        module = ap.shard(seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))), mesh_of())
        module[0].weight.requires_grad_(False)
        schedule = ap.schedule("zb-h1", ranks=1, microbatches=2).lowered(parameters=True)
        pipe = ap.Pipeline([module], schedule, alone(), squares)
        optimizer = torch.optim.AdamW([p for p in pipe.parameters() if p.requires_grad])
        before = [p.full_tensor().clone() for p in module.parameters()]
        pipe.step(torch.ones(4, 4), target=torch.zeros(4, 2))
        optimizer.step()
        assert module[0].weight.grad is None
        moved = [not torch.equal(p.full_tensor(), old) for p, old in zip(module.parameters(), before, strict=True)]
        assert moved == [False, True, True, True]
        output = pipe.eval(torch.ones(4, 4))[0]
        assert torch.equal(output, module(torch.ones(2, 4)))
        checkpoints.save(module.state_dict(), checkpoint_id=shared[0])
        other = ap.shard(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), mesh_of())
        state = other.state_dict()
        checkpoints.load(state, checkpoint_id=shared[0])
        other.load_state_dict(state)
        assert torch.equal(other(torch.ones(2, 4)), output)
        dist.barrier()


def squares(output, target):
    return ((output - target) ** 2).sum()


CASES = (
    shared_parameters_are_gathered_once_and_equal_eager,
    gradients_are_means_over_the_ranks,
    parametrizations_of_users_are_traced,
    tensor_parallel_modules_are_traced,
    context_parallel_modules_are_traced,
    tied_stages_stay_tied,
    a_forward_reads_what_an_earlier_call_has_shared,
    ranks_that_share_otherwise_are_refused_by_name,
    stages_that_ranks_do_not_share_alike_are_refused_before_a_step,
    buckets_change_no_bit,
    names_and_whole_state_dicts_stay,
    what_cannot_be_traced_is_refused,
    pipelines_gather_and_reduce_once_per_step,
    experts_and_dense_parameters_have_meshes_of_their_own,
    checkpoints_compute_again_and_do_not_gather_again,
    optimizers_checkpoints_and_frozen_parameters_work,
    *fully_sharded_cases.CASES,
)


if __name__ == "__main__":
    run_cases(CASES)
