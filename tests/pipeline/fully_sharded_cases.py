"""Cases for the rank program sharded_cases: what ``fully_shard`` has sharded, beside FSDP2 and upstream's pipelines."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.pipelining import schedules as upstream
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import annopipe as ap
from tests.pipeline.releases import COMBINED, OF_2_11, SPLIT, classes
from tests.pipeline.trial import close, refused

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
WIDTH = 6
CLASSES = classes(WORLD // 2)


class Block(nn.Module):
    """Uneven shards, a tied weight, a weight that is frozen, one that FSDP is to leave alone, a keyword."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)
        self.again = nn.Linear(WIDTH, 5)
        self.again.weight = self.up.weight
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.ignored = nn.Parameter(torch.ones(3))

    def forward(self, x, scale=None):
        with ap.region("mlp"):
            x = x + self.down(torch.tanh(self.up(x) + self.again(x))) * self.frozen
        return self.norm(x if scale is None else x * scale)

    def twice(self, x):
        return self.up(x) * 2


def seeded(build=Block, seed=0):
    torch.manual_seed(seed)
    return build()


def flat(ranks=WORLD):
    return init_device_mesh("cpu", (WORLD // ranks, ranks), mesh_dim_names=("other", "data"))["data"]


def nested(module, mesh, *, whole=False, **options):
    """One group inside another, one parameter in none."""
    if not whole:
        fully_shard(module.norm, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh, ignored_params={module.ignored}, **options)


def own_input(seed=0, dtype=None):
    generator = torch.Generator().manual_seed(10 + dist.get_rank() + 100 * seed)
    return torch.randn(4, WIDTH, generator=generator, dtype=dtype).requires_grad_()


def part(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def same_gradients(own, other, what, exact):
    theirs = dict(other.named_parameters())
    for name, parameter in own.named_parameters():
        expected = theirs[name].grad
        assert (parameter.grad is None) == (expected is None), f"{what} {name}"
        if expected is not None:
            assert parameter.grad.dtype == expected.dtype, f"{what} {name}"
            if isinstance(expected, DTensor):
                assert (parameter.grad.placements, parameter.grad.shape) == (expected.placements, expected.shape)
            if WORLD == 2:
                assert torch.equal(part(parameter.grad), part(expected)), f"{what} {name}"
            else:  # gloo adds up more ranks in an order that depends on where in a message a number is
                close(part(parameter.grad), part(expected), f"{what} {name}", 1e-12 if exact else 0.02)


def beside_fsdp(sharded, what="", calls=((own_input, {}),), exact=True):
    """A module that `sharded` makes, under FSDP, taken over, and traced in a pipeline: the same gradients."""
    theirs, eager, piped = sharded(), ap.from_fully_shard(sharded()), ap.from_fully_shard(sharded())
    assert not [child for child in eager.modules() if isinstance(child, FSDPModule)]
    pipe = ap.Pipeline([piped], ap.schedule("1f1b", ranks=1, microbatches=1), alone(), lambda y, _: loss_of(y))
    for make, kwargs in calls:
        inputs = [make() for _ in range(3)]
        expected = theirs(inputs[0], **kwargs)
        loss_of(expected).backward()
        found = eager(inputs[1], **kwargs)
        loss_of(found).backward()
        found_loss = pipe.step(inputs[2], target=torch.zeros(4), **kwargs)[0]
        assert found.dtype == expected.dtype, what
        assert torch.equal(found, expected), what
        assert torch.equal(found_loss, loss_of(expected).detach()), what
        assert torch.equal(inputs[1].grad, inputs[0].grad), what
        same_gradients(eager, theirs, f"{what} eager", exact)
        same_gradients(piped, theirs, f"{what} pipeline", exact)
    gathered_once(piped, calls[0], what)


def gathered_once(module, call, what):
    """Each parameter, in the graph that a step runs once, and whole there: no gathered weight is made or kept after."""
    make, kwargs = call
    graphs = ap.trace(module, (make(),), kwargs)
    read = [p for p in module.parameters() if p.grad is not None or not p.requires_grad]
    sharded = {p for p in read if isinstance(p, DTensor)}
    if any(1 in p.device_mesh.shape for p in sharded):
        return  # over one rank nothing is gathered
    per_parameter = max(p.device_mesh.ndim for p in sharded)
    assert graphs.unshard is None or len(sharded) <= graphs.unshard.launch_count <= per_parameter * len(sharded), what
    whole = {port.name for port in graphs.forward.inputs if port.role == "unsharded"}
    assert graphs.unshard is None or len(whole) >= len(sharded) - 1, what


def loss_of(output):
    return output.double().square().sum()


def alone():
    return dist.new_group([dist.get_rank()], use_local_synchronization=True)


def meshes_groups_and_placements_of_fully_shard_are_kept():
    beside_fsdp(lambda: nested(seeded(), flat()), "one dimension", ((own_input, {}), (own_input, {"scale": 2.0})))
    for shape in ((WORLD, 1), (1, WORLD), (WORLD // 2, 2)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("repeat", "share"))
        beside_fsdp(lambda mesh=mesh: nested(seeded(), mesh), f"hybrid {shape}")
    beside_fsdp(lambda: replicate(seeded(), mesh=flat()), "replicate")

    def along_columns(parameter):
        return Shard(1) if parameter.dim() == 2 and parameter.shape[1] % WORLD == 0 else Shard(0)

    wide = lambda: seeded(lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3)))  # noqa: E731
    beside_fsdp(lambda: fully_shard(wide(), mesh=flat(), shard_placement_fn=along_columns), "columns")

    def grouped():
        module = wide()
        fully_shard([module[0], module[2]], mesh=flat())
        return fully_shard(module, mesh=flat())

    beside_fsdp(grouped, "grouped")

    def divided():
        module = nested(seeded(), flat())
        module.set_gradient_divide_factor(4.0 * WORLD)
        return module

    beside_fsdp(divided, "divided")


class Experts(nn.Module):
    """The rank's experts are a DTensor on a mesh of their own, as expert parallelism has them."""

    def __init__(self, mesh):
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        weight = torch.randn(3 * mesh.size(), WIDTH, WIDTH)
        self.weight = nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))

    def forward(self, x):
        return self.dense(x) + (x @ self.weight.to_local()).sum(0).tanh()


def tensor_and_expert_parallel_parameters_are_kept():
    for other in (1, WORLD // 2, WORLD):
        mesh = init_device_mesh("cpu", (WORLD // other, other), mesh_dim_names=("data", "other"))

        def parallel(mesh=mesh):
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            module = seeded(lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH)))
            return fully_shard(parallelize_module(module, mesh["other"], plan), mesh=mesh["data"])

        beside_fsdp(parallel, f"tensor parallel {other}", ((lambda: same_inside(mesh["other"]), {}),))  # noqa: B023

        def experts(mesh=mesh):
            return fully_shard(seeded(lambda: Experts(mesh["other"])), mesh=mesh["data"])

        beside_fsdp(experts, f"experts {other}")

        def separate():
            """Experts over the ranks with the same ones, what is dense over all."""

            def build():
                module = Block()
                module.add_module("experts", nn.Linear(WIDTH, WIDTH))
                module.add_module("down", nn.Sequential(module.down, module.experts))
                return module

            module = seeded(build)
            fully_shard(module.experts, mesh=mesh["data"])  # noqa: B023
            module.experts.set_gradient_divide_factor(WORLD)
            return fully_shard(module, mesh=flat())

        if other < WORLD:  # FSDP itself divides twice where one rank has its own
            beside_fsdp(separate, f"experts on their own mesh {other}")


def same_inside(mesh):
    """An input that the ranks of the mesh have alike."""
    x = own_input().detach()
    dist.broadcast(x, group=mesh.get_group(), group_src=0)
    return x.requires_grad_()


def mixed_precision_is_kept():
    low, full = torch.bfloat16, torch.float32

    def single():
        return seeded().to(full)

    for policy in (
        MixedPrecisionPolicy(param_dtype=low),
        MixedPrecisionPolicy(param_dtype=low, reduce_dtype=full),
        MixedPrecisionPolicy(param_dtype=low, output_dtype=full),
        MixedPrecisionPolicy(reduce_dtype=torch.float64),
        MixedPrecisionPolicy(param_dtype=torch.float16),
    ):
        calls = ((lambda: own_input(dtype=full), {"scale": torch.full((1,), 0.5, dtype=full)}),)
        beside_fsdp(
            lambda policy=policy: fully_shard(single(), mesh=flat(), mp_policy=policy), str(policy), calls, exact=False
        )

    def mixed():
        """The norm in its own type, which casts back what it returns."""
        module = seeded(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)))
        inner = MixedPrecisionPolicy(param_dtype=full, output_dtype=low)
        fully_shard(module.to(full)[1], mesh=flat(), mp_policy=inner)
        return fully_shard(module, mesh=flat(), mp_policy=MixedPrecisionPolicy(low, full, full))

    beside_fsdp(mixed, "mixed", ((lambda: own_input(dtype=full), {}),), exact=False)


def what_fsdp_has_put_on_modules_is_gone():
    plain, module = seeded(), nested(seeded(), flat())
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loss_of(module(own_input())).backward()
    optimizer.step()
    gradients = [None if p.grad is None else part(p.grad).clone() for p in module.parameters()]
    module(own_input())  # gathered, and no backward behind it
    module.norm.unshard(async_op=True)
    register_fsdp_forward_method(module, "twice")
    assert any(not isinstance(p, DTensor) for n, p in module.named_parameters() if n != "ignored")
    assert ap.from_fully_shard(module) is module
    assert all(own is other for own, other in zip(module.parameters(), parameters, strict=True))
    for parameter, before in zip(module.parameters(), gradients, strict=True):
        assert before is None or torch.equal(part(parameter.grad), before)
    for child, other in zip(module.modules(), plain.modules(), strict=True):
        assert type(child).__name__ == type(other).__name__
        left = {key for key in vars(child) if key not in vars(other)}
        assert left <= {"_annopipe_reads", "_annopipe_scopes"}, left
        for key, value in vars(other).items():
            if key.endswith("_hooks") and key != "_load_state_dict_pre_hooks":
                assert len(vars(child)[key]) == len(value or ()), key
    module.zero_grad()
    x = own_input()
    output = module(x)
    assert list(module.state_dict()) == list(plain.state_dict())
    assert torch.equal(copy.deepcopy(module)(x), output)
    module.load_state_dict(plain.state_dict())
    assert torch.equal(module(x), plain(x))
    assert ap.from_fully_shard(module) is module, "there is nothing left to do"
    ap.shard(module, flat(), ignore=["ignored"])
    assert torch.equal(module(x), plain(x)), "what is shared stays as it is"


def what_fully_shard_has_and_graphs_have_not_is_refused():
    def told(match, change=lambda module: None, **options):
        module = fully_shard(seeded(), mesh=flat(), **options)
        change(module)
        kinds = [type(child) for child in module.modules()]
        refused(ap.PipelineError, match, lambda: ap.from_fully_shard(module))
        assert [type(child) for child in module.modules()] == kinds, "nothing is changed"

    communication = fully_shard(nn.Linear(2, 2), mesh=flat())._get_fsdp_state()._fsdp_param_group._all_gather_comm
    Own = type("Own", (type(communication),), {})

    def unreduced(module):
        module.set_requires_gradient_sync(False)
        loss_of(module(own_input())).backward()
        module.set_requires_gradient_sync(True)

    def midway(module):
        def take():
            ap.from_fully_shard(module)

        module.norm.register_forward_hook(lambda *_: refused(ap.PipelineError, "in the middle of", take))
        module(own_input())
        raise ap.PipelineError("refused there")

    told("the module is sharded by fully_shard and offloads", offload_policy=CPUOffloadPolicy(pin_memory=False))
    told("communicates by Own", lambda module: module.set_custom_all_gather(Own()))
    told("has an all-reduce hook", lambda module: module.set_all_reduce_hook(print))
    told("does not synchronize gradients now", lambda module: module.set_requires_gradient_sync(False))
    told("has gradients that are not reduced yet", unreduced)
    told(
        "register_fsdp_forward_method was called for twice",
        lambda module: register_fsdp_forward_method(module, "twice"),
        mp_policy=MixedPrecisionPolicy(torch.bfloat16),
    )
    refused(
        ap.PipelineError,
        "refused there",
        lambda: midway(fully_shard(seeded(), mesh=flat(), reshard_after_forward=False)),
    )
    recurrent = fully_shard(nn.LSTM(2, 2), mesh=flat())
    refused(ap.PipelineError, "is of a recurrent module", lambda: ap.from_fully_shard(recurrent))
    pair = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    fully_shard(list(pair), mesh=flat())
    refused(ap.PipelineError, "with modules outside of it", lambda: ap.from_fully_shard(pair[0]))
    shared = fully_shard(ap.shard(nn.Linear(2, 2), flat(1)), mesh=flat())
    refused(ap.PipelineError, "was sharded by ap.shard and then", lambda: ap.from_fully_shard(shared))
    refused(ap.CaptureError, "use ap.from_fully_shard(", lambda: ap.trace(nested(seeded(), flat()), (own_input(),)))


class Script:
    """A pipeline of torch.distributed.pipelining with stages in shards over 2 ranks; with ``ap.attach`` or without."""

    def __init__(self, name, attach, policy, chunks=None, **options):
        ranks = WORLD // 2
        given, folded, split = CLASSES[name]
        chunks = chunks or given
        mesh = init_device_mesh("cpu", (ranks, 2), mesh_dim_names=("stages", "data"))
        group, here = mesh["stages"].get_group(), mesh.get_local_rank("stages")
        self.count, self.data = chunks * ranks, mesh.get_local_rank("data")
        held = [here, self.count - 1 - here] if folded else range(here, self.count, ranks)
        # Of a group inside another upstream loses gradients where backwards are split.
        whole = split and not attach
        self.modules = {i: nested(seeded(seed=i), mesh["data"], whole=whole, mp_policy=policy) for i in held}
        self.optimizer = torch.optim.AdamW([p for m in self.modules.values() for p in m.parameters()], lr=0.01)
        stages = [
            pipelining.PipelineStage(module, index, self.count, torch.device("cpu"), group=group)
            for index, module in self.modules.items()
        ]
        make = getattr(upstream, name)
        self.schedule = make(stages if given > 1 else stages[0], 4, loss_fn=squares, **options)
        if attach:
            ap.attach(self.schedule, "alternate")

    def step(self, seed):
        generator = torch.Generator().manual_seed(10 * seed + self.data)
        x, y = (torch.randn(8, WIDTH, generator=generator) for _ in range(2))
        losses: list = []
        args = (x,) if 0 in self.modules else ()
        target = y if self.count - 1 in self.modules else None
        return self.schedule.step(*args, target=target, losses=losses), losses


def squares(output, target):
    return ((output - target) ** 2).mean()


def attached_pipelines_equal_upstream():
    quick = ("Schedule1F1B", "ScheduleInterleaved1F1B", COMBINED)
    trials: list = [(name, {}) for name in (CLASSES if WORLD > 2 else quick)]
    trials += [(SPLIT, {"scale_grads": False}), ("ScheduleInterleaved1F1B", {"chunks": 4})]
    if OF_2_11:
        trials = [(name, options) for name, options in trials if name in CLASSES]
    for name, options in trials:
        plain, attached = (Script(name, attach, MixedPrecisionPolicy(), **options) for attach in (False, True))
        for seed in (1, 2):
            (output, losses), (own_output, own_losses) = plain.step(seed), attached.step(seed)
            assert len(losses) == len(own_losses)
            for own, other in zip([own_output, *own_losses], [output, *losses], strict=True):
                assert own is other is None or torch.equal(own, other), name
            for index, module in attached.modules.items():
                for key, parameter in module.named_parameters():
                    expected = plain.modules[index].get_parameter(key).grad
                    assert (parameter.grad is None) == (expected is None), (
                        f"{name} {index}.{key}: {parameter.grad} {expected}"
                    )
                    if expected is not None:
                        close(part(parameter.grad), part(expected), f"{name} {key}")
            for script in (plain, attached):
                script.optimizer.step()
                script.optimizer.zero_grad()
        gathers = {str(action) for rank in attached.schedule.annopipe.schedule.ranks for action in rank}
        assert ("0UNSHARD" in gathers) == ("chunks" in options), "of many stages a few are held at a time"


CASES = (
    meshes_groups_and_placements_of_fully_shard_are_kept,
    tensor_and_expert_parallel_parameters_are_kept,
    mixed_precision_is_kept,
    what_fsdp_has_put_on_modules_is_gone,
    what_fully_shard_has_and_graphs_have_not_is_refused,
    attached_pipelines_equal_upstream,
)
