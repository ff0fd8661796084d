"""Rank program: scripts for torch.distributed.pipelining, run as they are and with one line more."""

import os
import re
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.pipelining import schedules as upstream
from torch.nn.parallel import DistributedDataParallel

import annopipe as ap
from annopipe.errors import PipelineError
from tests.pipeline.releases import COMBINED, OF_2_11, SPLIT, classes
from tests.pipeline.trial import close, run_cases

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
WIDTH, ROWS = 6, 2
COUNT = max(4, 2 * RANKS)  # microbatches
CLASSES = classes(RANKS)


class Block(nn.Module):
    """Two tensors in, a list out, a keyword, a frozen parameter, dropout; no buffer: upstream updates it too often."""

    def __init__(self, stage, count):
        super().__init__()
        torch.manual_seed(100 + stage)
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.3)
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.is_last = stage == count - 1

    def forward(self, x, mask, scale=None):
        with ap.region("mlp"):
            y = x + self.second(self.dropout(torch.tanh(self.first(x)))) * mask * self.frozen
        y = self.norm(y if scale is None else y * scale)
        return y if self.is_last else [y, mask + 0 * y[:, :1] if OF_2_11 else mask]


def squares(output, target, weight=1.0):
    return (weight * (output - target) ** 2).mean()


class Script:
    """What a user of torch.distributed.pipelining has; `attach` is the line that may be added, or its options."""

    has_run = False

    def __init__(self, name, attach, microbatches=COUNT, make=None, build=Block, loss_fn=squares, **options):
        self.chunks, folded, _ = CLASSES.get(name, (1 if name == "_ScheduleForwardOnly" else 2, False, False))
        self.count, self.rank = RANKS * self.chunks, dist.get_rank()
        held = [self.rank, self.count - 1 - self.rank] if folded else range(self.rank, self.count, RANKS)
        self.modules = {index: build(index, self.count) for index in held}
        stages = [
            pipelining.PipelineStage(module, index, self.count, torch.device("cpu"))
            for index, module in self.modules.items()
        ]
        make = make or getattr(upstream, name)
        self.schedule = make(stages[0] if self.chunks == 1 else stages, microbatches, loss_fn=loss_fn, **options)
        if attach:
            options = attach if isinstance(attach, dict) else {}
            assert ap.attach(self.schedule, **options) is self.schedule
        self.microbatches = microbatches

    def call(self, method="step", seed=1, *, target=True, kwargs=None, losses=True, inputs=None, **options):
        """Losses and output of one call, as a script makes it."""
        generator = torch.Generator().manual_seed(seed)
        rows = self.microbatches * ROWS
        x, y = (torch.randn(rows, WIDTH, generator=generator) for _ in range(2))
        mask = torch.rand(rows, 1, generator=generator)
        args = ((x, mask) if inputs is None else inputs(x, mask)) if 0 in self.modules else ()
        wanted = y if target and self.count - 1 in self.modules else None
        found: list | None = [] if losses else None
        torch.manual_seed(seed)
        run = getattr(self.schedule, method)
        output = run(*args, target=wanted, losses=found, **options, **({} if kwargs is None else kwargs(generator)))
        return found, output

    def gradients(self):
        return {
            f"{stage}.{name}": p.grad for stage, module in self.modules.items() for name, p in module.named_parameters()
        }

    def zero(self):
        for module in self.modules.values():
            module.zero_grad()

    def state(self):
        return {f"{stage}.{name}": value for stage, m in self.modules.items() for name, value in m.state_dict().items()}


def same(found, expected, what, exact):
    assert (found is None) == (expected is None), f"{what}: {found} and {expected}"
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), what
        for own, other in zip(found, expected, strict=True):
            same(own, other, what, exact)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), what
        for key in expected:
            same(found[key], expected[key], f"{what} {key}", exact)
    elif expected is not None:
        close(found.detach(), expected.detach(), what)
        assert not exact or torch.equal(found, expected), f"{what} is not bitwise equal"


def pair(name, *given, **options):
    return Script(name, False, *given, **options), Script(name, True, *given, **options)


def both(scripts, exact=False, **call):
    plain, attached = scripts
    if OF_2_11 and not plain.has_run:
        plain.call(**call)
    plain.has_run = True
    plain.zero()
    attached.zero()
    expected, found = plain.call(**call), attached.call(**call)
    same(found[0], expected[0], "losses", exact)
    same(found[1], expected[1], "output", exact)
    same(attached.gradients(), plain.gradients(), "gradient", exact)
    same(attached.state(), plain.state(), "state", exact)


def refused(match, call):
    with pytest.raises(PipelineError, match=re.escape(match)):
        call()


def every_class_has_the_losses_outputs_and_gradients_of_upstream():
    for name, (_, _, split) in CLASSES.items():  # one that splits backwards adds gradients up in another order
        both(pair(name, 3 if name == "Schedule1F1B" and RANKS < 4 else COUNT), exact=not split)
    for name in ("Schedule1F1B", SPLIT):
        both(pair(name, scale_grads=False), exact=name == "Schedule1F1B")
    options = {"policy": "sequential", "fixed_sums": True, "recompute": "mlp"}
    both((Script("Schedule1F1B", False), Script("Schedule1F1B", options)), exact=True)


def several_steps_with_an_optimizer_evaluation_and_new_sizes():
    for name in ("Schedule1F1B", SPLIT):
        scripts = pair(name)
        optimizers = [
            torch.optim.AdamW([p for m in s.modules.values() for p in m.parameters()], lr=0.01) for s in scripts
        ]
        for seed in (1, 2, 3):
            both(scripts, seed=seed)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            same(scripts[1].state(), scripts[0].state(), "state", exact=False)
            # Where a stage's neighbour is on the same rank upstream's own eval fails.
            expected = (scripts[1] if "ZBV" in name else scripts[0]).call("step" if "ZBV" in name else "eval", seed)
            same(scripts[1].call("eval", seed), expected, "evaluation", exact=False)
        both(scripts, seed=4, return_outputs=False, losses=False)


def keyword_arguments_and_those_of_the_loss_go_where_upstream_gives_them():
    for name in ("ScheduleGPipe", "ScheduleInterleaved1F1B"):
        scripts = pair(name)

        def scale(generator):
            return {"scale": torch.rand(COUNT * ROWS, 1, generator=generator) + 0.5}

        both(scripts, kwargs=scale)
        if OF_2_11:  # its schedules hand no arguments to the loss
            continue
        both(scripts, seed=2, kwargs=scale, loss_kwargs={"weight": 0.5})
        both(scripts, seed=3, kwargs=scale, loss_kwargs={"weight": torch.tensor(0.25)})
        if RANKS > 1 or name == "ScheduleGPipe":
            both(scripts, method="eval", seed=4, kwargs=scale, loss_kwargs={"weight": 2.0})


def a_loss_may_read_other_values_between_steps_and_a_trained_one_is_refused():
    weight = [1.0]

    def weighted(output, target):
        return squares(output, target, weight[0])

    scripts = pair("Schedule1F1B", loss_fn=weighted)
    for value in (1.0, 0.5, 1.0):
        weight[0] = value
        both(scripts)

    both(pair("Schedule1F1B", loss_fn=torch.compile(squares, backend="eager")))

    class Trained(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, output, target):
            return squares(output, target, self.weight)

    refused("loss_fn has a parameter, weight", Script("Schedule1F1B", True, loss_fn=Trained()).call)


class Across(nn.Module):
    """The batch is the second dimension; what it returns besides is the same for every microbatch, or a sum."""

    def __init__(self, stage, count):
        super().__init__()
        torch.manual_seed(100 + stage)
        self.inner, self.stage, self.count = nn.Linear(WIDTH, WIDTH), stage, count

    def forward(self, x, offsets=None):
        x = x + self.inner(x.transpose(0, 1)).transpose(0, 1).tanh()
        if offsets is not None:
            x = x + offsets[:, None]
        return (x, x.sum()) if self.stage == self.count - 1 else x


def chunk_specs_and_merge_specs_are_kept():
    spec = pipelining.microbatch.TensorChunkSpec
    specs = {
        "args_chunk_spec": (spec(1),),
        "kwargs_chunk_spec": {"offsets": pipelining.microbatch._Replicate()},
        "output_merge_spec": (spec(1), pipelining.microbatch.sum_reducer),
    }

    def loss(output, target):
        return ((output[0] - target.T) ** 2).mean()

    for name in ("Schedule1F1B", COMBINED):
        scripts = pair(name, build=Across, loss_fn=loss, **specs)
        call = {"inputs": lambda x, mask: (x.T.contiguous(),), "kwargs": lambda g: {"offsets": torch.ones(WIDTH)}}
        both(scripts, **call)


def gradients_of_inputs_are_as_upstream_has_them():
    for scale_grads in (True, False):
        kept: list = []

        def inputs(x, mask, kept=kept):
            kept.append(x.requires_grad_())
            return x, mask

        both(pair("ScheduleInterleaved1F1B", 3 if RANKS == 1 else COUNT, scale_grads=scale_grads), inputs=inputs)
        if kept:
            same(kept[-1].grad, kept[-2].grad, "input gradient", exact=True)


def gradients_that_were_there_before_stay():
    """Upstream divides them by the number of microbatches again; thirds show whether they are touched at all."""
    script = Script("ScheduleGPipe", True, 3)
    script.call()
    first = {name: grad.clone() for name, grad in script.gradients().items() if grad is not None}
    script.call("eval", seed=2)
    same({n: g for n, g in script.gradients().items() if g is not None}, first, "gradient", exact=True)
    script.call(seed=2)
    both_steps = script.gradients()
    script.zero()
    script.call(seed=2)
    for name, grad in script.gradients().items():
        if grad is not None:
            assert torch.equal(both_steps[name], first[name] + grad), name


def a_schedule_without_a_loss_runs_forwards():
    for name in ("ScheduleGPipe", "ScheduleInterleaved1F1B", "_ScheduleForwardOnly"):
        options = {"make": lambda stage, count, loss_fn: upstream._ScheduleForwardOnly(stage, count)}
        scripts = pair(name, loss_fn=None, **(options if name.startswith("_") else {}))
        for method in ("step", "eval") if RANKS > 1 or scripts[0].chunks == 1 else ():
            both(scripts, method=method, losses=False, target=False)
        message = "losses were asked for, and there is no loss_fn"
        if scripts[1].count - 1 in scripts[1].modules:
            refused(message, scripts[1].call)
        else:
            refused(f"cannot eval: PipelineError: {message}", scripts[1].call)


def schedules_from_csv_with_and_without_messages():
    """Without REDUCE_GRAD in a file with messages upstream does not divide."""
    with tempfile.TemporaryDirectory() as folder:
        written = Script(SPLIT, False).schedule
        paths = {kind: str(Path(folder, f"{kind}.csv")) for kind in ("compute_only", "compute_comms")}
        for kind, path in paths.items():
            written._dump_csv(path, format=kind)
        paths["cut"] = str(Path(folder, "cut.csv"))
        rows = Path(paths["compute_comms"]).read_text().splitlines()
        cut = [",".join(cell for cell in row.split(",") if "REDUCE_GRAD" not in cell) for row in rows]
        Path(paths["cut"]).write_text("\n".join(cut) + "\n")
        for kind, path in paths.items():

            def load(stages, count, path=path, kind=kind, **options):
                made = upstream._PipelineScheduleRuntime(stages, count, **options)
                made._load_csv(path, format="compute_only" if kind == "compute_only" else "compute_comms")
                return made

            both(pair(SPLIT, make=load))


class Whole(nn.Module):
    def __init__(self, skips=False):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.skips = skips

    def forward(self, x):
        first = x = self.layers[0](x).tanh()
        for layer in self.layers[1:-1]:
            x = layer(x).tanh()
        return self.layers[-1](x + first if self.skips else x)


def cut_by_tracing(name, attach, skips=False):
    """As ``pipelining.pipeline`` cuts a model."""
    chunks = CLASSES[name][0]
    count = RANKS * chunks
    cuts = {f"layers.{index * 4 // count}": pipelining.SplitPoint.BEGINNING for index in range(1, count)}
    pipe = pipelining.pipeline(Whole(skips), (torch.zeros(ROWS, WIDTH),), split_spec=cuts)
    held = range(dist.get_rank(), count, RANKS)
    stages = [pipe.build_stage(index, torch.device("cpu")) for index in held]
    made = getattr(upstream, name)(stages[0] if chunks == 1 else stages, COUNT, loss_fn=squares)
    if attach:
        ap.attach(made)
    script = object.__new__(Script)
    script.count, script.microbatches, script.schedule = count, COUNT, made
    script.modules = {stage.stage_index: stage.submod for stage in stages}
    return script


def stages_that_upstream_traced():
    if RANKS > 1:  # on one, upstream's own runtime sends to itself, which gloo refuses
        name = "ScheduleInterleaved1F1B" if RANKS == 2 else "ScheduleGPipe"
        both([cut_by_tracing(name, attach) for attach in (False, True)], inputs=lambda x, mask: (x,))
        refused("values that skip a stage", lambda: cut_by_tracing(name, True, skips=True))


def the_pipeline_itself_takes_no_batch():
    script = Script("ScheduleGPipe", True)
    for method in ("step", "step_microbatches", "prepare", "eval"):
        refused(f"schedule.annopipe.{method} takes no batch", getattr(script.schedule.annopipe, method))


def what_cannot_be_kept_is_refused_by_name():
    def changed(change, name="ScheduleInterleaved1F1B"):
        script = Script(name, False)
        change(script)
        return lambda: ap.attach(script.schedule)

    def of_stage(change):
        return changed(lambda script: change(script.schedule._stages[0]))

    def registered(script):
        script.schedule.register_custom_function(upstream.OVERLAP_F_B, lambda action, context: None)

    def wrapped(wrap):
        def change(stage):
            stage.submod = wrap(stage.submod)

        return of_stage(change)

    def in_shards(module):
        mesh = dist.init_device_mesh("cpu", (RANKS,))
        fully_shard(module.first, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
        return module

    class OwnOrder(upstream.ScheduleGPipe):
        def _step_microbatches(self, *args, **kwargs):
            return super()._step_microbatches(*args, **kwargs)

    class OwnStage(pipelining.PipelineStage):
        def forward_one_chunk(self, *args, **kwargs):
            return super().forward_one_chunk(*args, **kwargs)

    def own_stage(script):
        script.schedule._stages[0].__class__ = OwnStage

    refused("register_custom_function has been called for OVERLAP_F_B", changed(registered))
    refused("has a dw_builder", of_stage(lambda stage: setattr(stage, "dw_builder", lambda: None)))
    refused("is a DistributedDataParallel", wrapped(DistributedDataParallel))
    refused(".first is sharded by fully_shard and offloads parameters", wrapped(in_shards))
    refused("is a OwnStage with a forward_one_chunk of its own", changed(own_stage))
    refused("OwnOrder has a _step_microbatches of its own", lambda: Script("ScheduleGPipe", True, make=OwnOrder))
    refused(
        "backward_requires_autograd=False",
        lambda: Script("", True, make=upstream._PipelineScheduleRuntime, backward_requires_autograd=False),
    )
    refused("has no order yet", lambda: Script("", True, make=upstream._PipelineScheduleRuntime))
    refused("attach takes a schedule object", lambda: ap.attach(ap.schedule("gpipe", ranks=1, microbatches=1)))
    script = Script("ScheduleInterleaved1F1B", True)
    refused("attached already", lambda: ap.attach(script.schedule))
    script.call()
    registered(script)
    refused("register_custom_function has been called for OVERLAP_F_B", script.call)
    script.schedule._comp_type_to_function_map.clear()
    with torch.no_grad():
        refused("inside torch.no_grad", script.call)
    script.microbatches = 1  # a batch of ROWS rows
    refused("microbatches", script.call)
    script.microbatches = COUNT
    assert script.schedule.annopipe.schedule.microbatches == COUNT
    script.call()


if __name__ == "__main__":
    if RANKS == 1:
        dist.init_process_group("gloo")
    run_cases(
        [
            every_class_has_the_losses_outputs_and_gradients_of_upstream,
            several_steps_with_an_optimizer_evaluation_and_new_sizes,
            keyword_arguments_and_those_of_the_loss_go_where_upstream_gives_them,
            a_loss_may_read_other_values_between_steps_and_a_trained_one_is_refused,
            chunk_specs_and_merge_specs_are_kept,
            gradients_of_inputs_are_as_upstream_has_them,
            gradients_that_were_there_before_stay,
            a_schedule_without_a_loss_runs_forwards,
            schedules_from_csv_with_and_without_messages,
            stages_that_upstream_traced,
            the_pipeline_itself_takes_no_batch,
            what_cannot_be_kept_is_refused_by_name,
        ]
    )
