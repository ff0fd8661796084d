"""Rank program: pipelines of parallel stages, beside the whole model in one process on all data.

Two ranks inside each stage, times half of all ranks as pipeline ranks: one with two ranks, two with four.
"""

import collections
import dataclasses
import functools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from tests.pipeline.trial import close, run_cases

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
MICROBATCHES, STEPS, WIDTH = 4, 2, 8
GATHER, SCATTER, REDUCE = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"


@functools.cache
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=("stages", "inner"))


def schedule_of(name, *, explicit=False):
    schedule = ap.schedule(name, ranks=WORLD // 2, microbatches=MICROBATCHES)
    return schedule.lowered(parameters=True) if explicit else schedule


def held(schedule, build):
    """This rank's stages, None for those of others; `build(stage, stages)`."""
    placement = schedule.placement
    mine = mesh().get_local_rank("stages")
    return [build(i, placement.stages) if rank == mine else None for i, rank in enumerate(placement.rank_of)]


def pipeline(stages, schedule, loss_fn, **options):
    return ap.Pipeline(stages, schedule, mesh()["stages"].get_group(), loss_fn, "alternate", **options)


def seeded(build, seed):
    torch.manual_seed(seed)
    return build()


def squares(output, target):
    return ((output - target) ** 2).sum()


class Launches(TorchDispatchMode):
    """Counts collectives as they are called, by name."""

    def __init__(self):
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).split(".")
        if name[0] == "_c10d_functional" and name[1] != "wait_tensor":
            self.counts[name[1]] += 1
        return func(*args, **(kwargs or {}))


def data(step, *shape):
    """Inputs and targets of both inner ranks: [2, 2, batch, ...]."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, 2, *shape, generator=generator)


def whole_gradients(whole, x, y, loss_fn=squares, divide_by=1, microbatches=MICROBATCHES):
    """Added to those of the stages."""
    for part, target in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
        value = part
        for stage in whole:
            value = stage(value)
        (loss_fn(value, target) / divide_by).backward()


def check(stages, whole, what):
    """Gradients of this rank's stages."""
    for index, stage in enumerate(stages):
        for key, parameter in stage.named_parameters() if stage is not None else ():
            own = parameter.grad.full_tensor() if isinstance(parameter, DTensor) else parameter.grad
            close(own, whole[index].get_parameter(key).grad, f"{what}: stage {index} {key}", 1e-10)


def clip_and_check(pipe, stages, whole, what):
    norm = ap.clip_grad_norm_(pipe, 0.5)
    expected = torch.nn.utils.clip_grad_norm_([p for stage in whole for p in stage.parameters()], 0.5)
    close(norm, expected, f"{what}: norm")
    check(stages, whole, f"{what}, clipped")


class Block(nn.Module):
    """A weight read twice; odd sizes, one smaller than the number of ranks; a scalar; a buffer."""

    def __init__(self, width=7, inner=5):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.scale, self.one = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(1, width))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        x = x.to(self.up.weight.dtype)
        with ap.region("mlp"):
            return self.down(torch.tanh(self.up(x))) * self.scale + self.up.bias.sum() + x * self.one


def sharded_stages_gather_and_reduce_once_per_step():
    for name in ("1f1b", "zbv", "dualpipev"):
        for explicit in (False, True):
            schedule, what = schedule_of(name, explicit=explicit), f"{name}, explicit={explicit}"
            stages = held(schedule, lambda i, _: ap.shard(seeded(Block, i), mesh()["inner"]))
            whole = [seeded(Block, i) for i in range(schedule.placement.stages)]
            bucket_bytes = None if explicit else 2**20
            pipe = pipeline(stages, schedule, squares, bucket_bytes=bucket_bytes)
            at, here = mesh().get_local_rank("inner"), sum(stage is not None for stage in stages)
            for step in range(STEPS):
                x, y = data(step, 8, 7)
                for part, target in zip(x, y, strict=True):
                    whole_gradients(whole, part, target, divide_by=2)
                if not step:
                    pipe.prepare(x[at], target=y[at])
                with Launches() as launches:
                    pipe.step(x[at], target=y[at])
                found = {key: launches.counts[key] for key in (GATHER, SCATTER, REDUCE)}
                shared = here if bucket_bytes else 5 * here  # two weights, two biases, a row; all in one bucket
                assert found == {GATHER: shared, SCATTER: shared, REDUCE: here}, f"{what}: {found}"  # and a scalar
                check(stages, whole, what)
            clip_and_check(pipe, stages, whole, what)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, x):
        with ap.region("mlp"):
            return self.down(F.gelu(self.up(self.norm(x))))


def tensor_parallel_stages_train_as_the_whole_model():
    """Both inner ranks have the same data."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for name in ("1f1b", "zbv", "dualpipev"):
        schedule = schedule_of(name)
        stages = held(schedule, lambda i, _: parallelize_module(seeded(Mlp, i), mesh()["inner"], plan))
        whole = [seeded(Mlp, i) for i in range(schedule.placement.stages)]
        pipe = pipeline(stages, schedule, squares)
        for step in range(STEPS):
            (x, _), (y, _) = data(step, 8, 6, WIDTH)
            whole_gradients(whole, x, y)
            pipe.step(x, target=y)
            check(stages, whole, name)
        clip_and_check(pipe, stages, whole, name)


def sequence_parallel_stages_hand_on_their_part_of_the_sequence():
    """Each inner rank has one half of all sequences."""
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for name in ("1f1b", "zbv", "dualpipev"):
        schedule = schedule_of(name)
        stages = held(schedule, lambda i, _: parallelize_module(seeded(Mlp, i), mesh()["inner"], plan))
        whole = [seeded(Mlp, i) for i in range(schedule.placement.stages)]
        pipe = pipeline(stages, schedule, squares, bucket_bytes=None)
        at, here = mesh().get_local_rank("inner"), sum(stage is not None for stage in stages)
        for step in range(STEPS):
            (x, _), (y, _) = data(step, 8, 6, WIDTH)
            whole_gradients(whole, x, y)
            own, target = x.chunk(2, 1)[at], y.chunk(2, 1)[at]
            if not step:
                pipe.prepare(own, target=target)
            with Launches() as launches:
                pipe.step(own, target=target)
            # Once per step what only gradients of parameters need, those of norm's; the rest once per microbatch.
            per_microbatch = 2 * MICROBATCHES * here
            found = tuple(launches.counts[key] for key in (GATHER, SCATTER, REDUCE))
            assert found == (per_microbatch, per_microbatch, 2 * here), launches.counts
            check(stages, whole, name)
        clip_and_check(pipe, stages, whole, name)


CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), layers=4, dense_layers=1)


def moe_stage(index, stages, group=None, config=CONFIG, **options):
    layers = range(config.layers * index // stages, config.layers * (index + 1) // stages)
    ends = {"embed": index == 0, "head": index == stages - 1}
    return DeepSeekV3Stage(config, layers, group, **ends, dtype=torch.float64, **options)


def shard_dense(stage):
    """All but experts, over the expert ranks: they have other data, and gradients of experts are sums over it."""
    experts = [name for name, _ in stage.named_modules() if name.endswith(".experts")]
    return ap.shard(stage, mesh()["inner"], divide_by=1, ignore=experts)


def entropy(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum")


def dense_parameters_are_shared_by_the_expert_ranks():
    group, at = mesh()["inner"].get_group(), mesh().get_local_rank("inner")
    for name, explicit in (("1f1b", False), ("dualpipev", True)):
        schedule = schedule_of(name, explicit=explicit)
        stages = held(schedule, lambda i, n: shard_dense(moe_stage(i, n, group)))
        whole = moe_stage(0, 1)
        pipe = pipeline(stages, schedule, entropy, plan_group=group, bucket_bytes=None)
        for step in range(STEPS):
            tokens = torch.randint(CONFIG.vocabulary, (16, 7), generator=torch.Generator().manual_seed(step))
            for part in tokens.chunk(2 * MICROBATCHES):
                entropy(whole(part[:, :-1]), part[:, 1:]).backward()
            own = tokens.chunk(2)[at]
            if not step:
                pipe.prepare(own[:, :-1], target=own[:, 1:])
            with Launches() as launches:
                pipe.step(own[:, :-1], target=own[:, 1:])
            dense = [key for key, parameter in pipe.named_parameters() if isinstance(parameter, DTensor)]
            assert all(".experts." not in key for key in dense)
            assert launches.counts[GATHER] == launches.counts[SCATTER] == len(dense), launches.counts
            for key, parameter in pipe.named_parameters():
                expected = whole.get_parameter(key.partition(".")[2]).grad
                if ".experts." in key:
                    close(parameter.grad, expected.chunk(2)[at], f"{name} {key}", 1e-10)
                else:
                    close(parameter.grad.full_tensor(), expected, f"{name} {key}", 1e-10)
        parts = [parameter for key, parameter in pipe.named_parameters() if ".experts." in key]
        norm = ap.clip_grad_norm_(pipe, 0.1, sharded=parts, group=group)
        close(norm, torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.1), "norm")


def stages_on_the_meta_device_begin_as_parts_of_the_whole_model():
    """Dense parameters over the expert ranks, experts over them, too: their first dimension is that of experts."""
    group, at = mesh()["inner"].get_group(), mesh().get_local_rank("inner")
    whole = moe_stage(0, 1)
    for experts_apart in (True, False):
        stage = moe_stage(0, 1, group if experts_apart else None, device="meta")
        (shard_dense(stage) if experts_apart else ap.shard(stage, mesh()["inner"])).to_empty(device="cpu")
        stage.reset_parameters()
        for key, parameter in stage.named_parameters():
            expected = whole.get_parameter(key)
            if isinstance(parameter, DTensor):
                assert parameter.to_local().shape == expected.chunk(2)[at].shape, key
                assert torch.equal(parameter.full_tensor(), expected), key
            else:
                assert torch.equal(parameter, expected.chunk(2)[at]), key
        assert any(not isinstance(parameter, DTensor) for parameter in stage.parameters()) == experts_apart
        for key, buffer in stage.named_buffers():
            assert experts_apart or torch.equal(buffer, whole.get_buffer(key)), key


class Cast(nn.Module):
    """Layers of any type between inputs and outputs of one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 6)

    def forward(self, x):
        with ap.region("mlp"):
            return self.second(torch.tanh(self.first(x.to(self.first.weight.dtype)))).to(x.dtype)


def gradients_of_narrow_types_are_added_up_in_wide_ones():
    """By hand: each microbatch's gradient in bfloat16, sums over microbatches in float32, then those over ranks."""
    at, low = mesh().get_local_rank("inner"), torch.bfloat16
    for mode, reduce_dtype, explicit in (
        ("shard", None, False),
        ("shard", torch.float32, True),
        ("replicate", low, False),
    ):
        schedule = schedule_of("1f1b", explicit=explicit)
        options = {"mode": mode, "param_dtype": low, "reduce_dtype": reduce_dtype}
        stages = held(schedule, lambda i, _, o=options: ap.shard(seeded(Cast, i).float(), mesh()["inner"], **o))
        pipe = pipeline(stages, schedule, squares)
        x, y = data(0, 8, 6).float()
        pipe.step(x[at], target=y[at])
        expected = sums_by_hand(schedule.placement.stages, x, y, reduce_dtype or torch.float32)
        for index, stage in enumerate(stages):
            for key, parameter in stage.named_parameters() if stage is not None else ():
                assert parameter.dtype == parameter.grad.dtype == torch.float32
                other = expected[index][key]
                assert torch.equal(parameter.grad.full_tensor(), other), f"{options} {index} {key}"


def sums_by_hand(count, x, y, reduce_dtype):
    """By stage and name, the means over two ranks."""
    ranks = []
    for own, targets in zip(x, y, strict=True):
        whole = [seeded(Cast, i).float().bfloat16() for i in range(count)]
        sums = [{key: torch.zeros_like(p, dtype=torch.float32) for key, p in s.named_parameters()} for s in whole]
        for part, target in zip(own.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True):
            whole_gradients(whole, part, target, microbatches=1)
            for stage, added in zip(whole, sums, strict=True):
                for key, parameter in stage.named_parameters():
                    added[key] += parameter.grad
                    parameter.grad = None
        ranks.append(sums)
    first, second = ranks
    return [
        {key: (a[key].to(reduce_dtype) + b[key].to(reduce_dtype)).float() / 2 for key in a}
        for a, b in zip(first, second, strict=True)
    ]


class Layers(nn.Module):
    """Some layers of a model of four, under their names in it."""

    def __init__(self, numbers):
        super().__init__()
        self.layers = nn.ModuleDict({str(number): Block() for number in numbers})

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


def layers_of(stage, stages):
    return Layers(range(4 * stage // stages, 4 * (stage + 1) // stages))


class Run:
    """Training on pipeline ranks times data ranks, beside which there may be copies of all that."""

    def __init__(self, name, pipeline_ranks, data_ranks, mode, device="cpu"):
        shape = (WORLD // pipeline_ranks // data_ranks, pipeline_ranks, data_ranks)
        ranks = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "stages", "data"))
        self.data_rank, self.data_ranks = ranks.get_local_rank("data"), data_ranks
        schedule = ap.schedule(name, ranks=pipeline_ranks, microbatches=MICROBATCHES)
        placement, here = schedule.placement, ranks.get_local_rank("stages")
        stages: list[nn.Module | None] = [None] * placement.stages
        for index in placement.stages_on[here]:
            torch.manual_seed(index)
            with torch.device(device):
                stage = layers_of(index, placement.stages)
            if mode is not None:
                ap.shard(stage, ranks["data"], mode=mode, divide_by=1)
            stages[index] = stage.to_empty(device="cpu") if device == "meta" else stage
        self.pipe = ap.Pipeline(stages, schedule, ranks["stages"].get_group(), squares)
        self.optimizer = torch.optim.AdamW(self.pipe.parameters(), lr=1e-2)

    def step(self, x, y):
        own, target = (tensor.chunk(self.data_ranks)[self.data_rank] for tensor in (x, y))
        self.pipe.step(own, target=target, loss_scale=1 / len(x))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return ap.state_dict(self.pipe, self.optimizer)


def check_run(run, whole, optimizer, what):
    """Parameters and what the optimizer has for them; the state's tensors are whole, or DTensors."""
    state = run.state()
    for key in state["model"]:
        if not key.endswith("calls"):
            close(full(state["model"][key]), whole.get_parameter(key), f"{what}: {key}", 1e-10)
            kept = optimizer.state[whole.get_parameter(key)]
            for part, expected in kept.items():
                close(full(state["optimizer"][f"state.{key}.{part}"]), expected, f"{what}: {part} of {key}", 1e-10)


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train_whole(whole, optimizer, step):
    (x, _), (y, _) = data(step, 16, 7)
    (squares(whole(x), y) / len(x)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return x, y


def training_goes_on_from_a_checkpoint_on_other_ranks():
    """What loads is built on the meta device, and each rank has memory for its own parts of its own stages alone."""
    with tempfile.TemporaryDirectory() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared)
        first = Run("dualpipev", WORLD // 2, 2, "shard")
        whole = Layers(range(4))
        optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2)
        entire = first.pipe.gather({k: full(v) for k, v in first.state()["model"].items()}, "parameters")
        whole.load_state_dict({key: value for part in entire for key, value in part.items()})
        for step in range(2):
            first.step(*train_whole(whole, optimizer, step))
        check_run(first, whole, optimizer, "before")
        dcp.save(first.state(), checkpoint_id=shared[0])
        kinds = [("dualpipev", WORLD // 2, 2, "shard"), ("gpipe", 1, 1, None), ("dualpipev", 1, 2, "replicate")]
        kinds += [("1f1b", 1, 2, "shard"), ("zbv", 2, 1, None)]
        runs = [Run(*kind, "meta") for kind in kinds]
        for run in runs:
            state = run.state()
            dcp.load(state, checkpoint_id=shared[0])
            ap.load_state_dict(run.pipe, state, run.optimizer)
        calls = torch.tensor(2.0 * MICROBATCHES)
        for run, kind in zip(runs, kinds, strict=True):
            check_run(run, whole, optimizer, f"{kind} loaded")
            found = {key: value for key, value in run.state()["model"].items() if key.endswith("calls")}
            assert found
            assert all(value == calls for value in found.values()), found
        for step in range(2, 4):
            x, y = train_whole(whole, optimizer, step)
            for run in runs:
                run.step(x, y)
        for run, kind in zip(runs, kinds, strict=True):
            check_run(run, whole, optimizer, f"{kind} after")
        dist.barrier()


CASES = (
    sharded_stages_gather_and_reduce_once_per_step,
    tensor_parallel_stages_train_as_the_whole_model,
    sequence_parallel_stages_hand_on_their_part_of_the_sequence,
    dense_parameters_are_shared_by_the_expert_ranks,
    stages_on_the_meta_device_begin_as_parts_of_the_whole_model,
    gradients_of_narrow_types_are_added_up_in_wide_ones,
    training_goes_on_from_a_checkpoint_on_other_ranks,
)


if __name__ == "__main__":
    run_cases(CASES)
