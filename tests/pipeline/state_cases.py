"""Rank program: losses, parameters that are frozen, unused or tied, buffers, random numbers, evaluation, memory."""

import copy
import gc
import itertools
import re
import unittest.mock
import warnings

import torch
import torch.distributed as dist
from torch import nn

import annopipe as ap
from annopipe.errors import PipelineError
from annopipe.pipeline.stages.stage import LocalStage
from tests.pipeline.trial import SCHEDULES, Trial, batches, close, refused, run_cases, seeded, squares


class Linear(nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


def whole_batch(calls):
    return torch.cat([call[0][0] for call in calls]), torch.cat([call[2] for call in calls])


def as_float(calls):
    return [((x.float(),), kwargs, y.float()) for (x,), kwargs, y in calls]


def losses_are_normalised_by_all_tokens_of_a_batch():
    """One microbatch has no valid token; two steps are added up before the gradients are used."""

    def summed(output, target):
        valid = target[:, 0] > -1
        return (((output - target) ** 2) * valid[:, None]).sum()

    for name in SCHEDULES:
        trial = Trial(Linear, name, 4, loss_fn=summed)
        for seed in (1, 2):
            calls = batches(4, seed=seed)
            calls[1][2].fill_(-2.0)
            tokens = sum(int((target[:, 0] > -1).sum()) for _, _, target in calls)
            trial.both(calls, scale=1 / tokens)
        trial.zero()
        trial.both(batches(4), scale=torch.tensor(0.25))


def outputs_of_a_step_are_kept_on_request_only():
    trial = Trial(Linear, "1f1b", 3)
    calls = batches(3)
    trial.both(calls)
    assert trial.pipe.outputs is None
    trial.pipe.keep_outputs = True
    trial.both(calls)
    assert (trial.pipe.outputs is not None) == trial.pipe.holds_last
    outputs: list[torch.Tensor] = trial.pipe.outputs or []
    for output, (args, _, _) in zip(outputs, calls, strict=False):
        assert not output.requires_grad
        close(output, trial.forward(args), "output")
    trial.pipe.keep_outputs = False
    trial.both(calls)
    assert trial.pipe.outputs is None


class Balanced(nn.Module):
    """Adds auxiliary losses on every second stage, one of them of what it does not hand on."""

    def __init__(self, stage, count):
        super().__init__()
        self.inner, self.router, self.stage, self.count = nn.Linear(6, 6), nn.Linear(6, 3), stage, count

    def forward(self, x):
        if self.stage % 2 == 0:
            ap.auxiliary_loss(0.1 * (self.router(x).softmax(-1).mean(0) ** 2).sum())
            ap.auxiliary_loss(0.01 * x.square().mean())
        return torch.tanh(self.inner(x))


def auxiliary_losses_are_differentiated_on_every_stage():
    for name in SCHEDULES:
        trial = Trial(Balanced, name)
        trial.both(batches(3))
        assert sorted(trial.pipe.auxiliary_losses) == [stage for stage in trial.mine if stage % 2 == 0]
        assert all(len(found) == 3 for found in trial.pipe.auxiliary_losses.values())
        trial.both(batches(3, seed=1), scale=0.1, auxiliary_scale=0.5)
        outputs = trial.pipe.eval(whole_batch(batches(3))[0])
        assert (outputs is not None) == trial.pipe.holds_last

    class OnlyAuxiliary(Balanced):
        def __init__(self, _, count):
            super().__init__(0, count)

        def forward(self, x):
            return super().forward(x).detach()

    for name in SCHEDULES:
        Trial(OnlyAuxiliary, name, loss_fn=lambda output, target: (output * target).sum()).both(batches(3))


def frozen_parameters_get_no_gradient():
    """A frozen first stage, a frozen one between others, all but the biases, and all but the first."""
    frozen = {
        "first": lambda stage, count: stage == 0,
        "middle": lambda stage, count: 0 < stage < count - 1,
        "but the first": lambda stage, count: stage > 0,
        "all": lambda stage, count: True,
    }
    for (which, is_frozen), name in itertools.product(frozen.items(), SCHEDULES):
        if which != "first" and name != SCHEDULES[-1]:
            continue
        Trial(lambda s, n, is_frozen=is_frozen: Linear().requires_grad_(not is_frozen(s, n)), name).both(batches(3))

    class Adapted(nn.Module):
        """A frozen matrix with a small trained correction, and a parameter that nothing uses."""

        def __init__(self, *_):
            super().__init__()
            self.inner = nn.Linear(6, 6).requires_grad_(False)
            self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
            self.unused = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return torch.tanh(self.inner(x) + self.up(self.down(x)))

    for name in SCHEDULES:
        Trial(Adapted, name).both(batches(3))


def parameters_may_be_frozen_and_trained_again():
    for name in SCHEDULES:
        trial = Trial(Linear, name)
        trial.both(batches(3))
        for trained in (False, True):
            trial.zero()
            for module in (trial.whole[0], trial.mine.get(0)):
                if module is not None:
                    module.inner.weight.requires_grad_(trained)
            trial.both(batches(3, seed=4))


class Counting(nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("rows", torch.zeros(6))
        self.register_buffer("bias", torch.zeros(6))

    def forward(self, x):
        y = self.norm(self.inner(x)) + self.bias
        with torch.no_grad():
            self.rows.mul_(0.5).add_(y.sum(0))
        return y


def buffers_are_updated_once_in_the_order_of_microbatches():
    """And a buffer that the training loop changes between steps, as a router's bias, is what it is then."""
    for name in SCHEDULES:
        trial = Trial(Counting, name)
        for step in range(3):
            trial.both(batches(3, seed=step, shape=(4, 6)))
            for stage, module in enumerate(trial.whole):
                for found in (module, *([trial.mine[stage]] if stage in trial.mine else [])):
                    found.bias += 0.5
                    if step:
                        found.bias = found.bias.clone()


def preparing_changes_nothing():
    for name in SCHEDULES:
        trial = Trial(Counting, name)
        state = {(stage, key): value for stage, m in trial.mine.items() for key, value in m.state_dict().items()}
        before = {key: value.clone() for key, value in state.items()}
        generator = torch.get_rng_state()
        x, y = whole_batch(batches(3, shape=(4, 6)))
        trial.pipe.prepare(x, target=y)
        assert torch.equal(torch.get_rng_state(), generator)
        assert all(torch.equal(value, before[key]) for key, value in state.items())
        assert all(parameter.grad is None and parameter.requires_grad for parameter in trial.pipe.parameters())


def evaluation_is_possible_at_any_time():
    for name in SCHEDULES:
        trial = Trial(Counting, name)
        for step in range(2):
            calls = batches(3, seed=step, shape=(4, 6))
            x, _ = whole_batch(calls)
            for module in trial.whole:
                module.eval()
            with torch.no_grad():
                expected = [trial.forward((part,)) for part in x.chunk(3)]
            for module in trial.whole:
                module.train()
            outputs = trial.pipe.eval(x)
            assert (outputs is not None) == trial.pipe.holds_last
            for own, other in zip(outputs or [], expected, strict=True) if outputs is not None else ():
                close(own, other, "output")
                assert not own.requires_grad
            trial.check()
            assert all(part.training for module in trial.mine.values() for part in module.modules())
            trial.both(calls)

    class Chooses(Linear):
        """Has nothing to differentiate in evaluation mode, where it returns something else."""

        def forward(self, x):
            return super().forward(x) if self.training else {"best": super().forward(x.double()).argmax(-1) % 6 * 1.0}

    def build(stage, count):
        return Chooses() if stage == count - 1 else Linear()

    trial = Trial(build, "zbv")
    outputs = trial.pipe.eval(torch.ones(6, 6))
    assert outputs is None or outputs[0]["best"].shape == (2,)
    trial.both(batches(3))


def shapes_and_modes_may_change_between_steps():
    for name in SCHEDULES:
        trial = Trial(Counting, name)
        for shape in ((4, 6), (2, 6), (4, 6)):
            trial.both(batches(3, shape=shape))
        for module in (*trial.whole, *trial.mine.values()):
            module.norm.eval()
        trial.both(batches(3, shape=(4, 6)))
        for module in (*trial.whole, *trial.mine.values()):
            module.float()
        trial.zero()
        calls = as_float(batches(3))
        trial.eager(calls)
        trial.pipe.step_microbatches(*zip(*calls, strict=True))
        trial.check(tolerance=1e-5)


class Scaled(Linear):
    """Reads numbers from itself, and has a submodule that may be another one."""

    def __init__(self, *_):
        super().__init__()
        self.scale, self.act, self.drop = 1.0, nn.Tanh(), nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(self.act(super().forward(x)) * self.scale)


def double(module, args, output):
    return output * 2


def changes_of_python_values_between_steps_are_noticed():
    """Numbers, a probability, a submodule, a hook, a method, and what the loss closes over; hooks on parameters."""
    changes = (
        lambda module: setattr(module, "scale", 2.0),
        lambda module: setattr(module.drop, "p", 1.0),
        lambda module: setattr(module.drop, "p", 0.0),
        lambda module: setattr(module, "act", nn.Sigmoid()),
        lambda module: module.inner.register_forward_hook(double),
        lambda module: setattr(module.act, "forward", torch.cos),
    )
    weight = [1.0]
    trial = Trial(Scaled, "dualpipev", loss_fn=lambda output, target: weight[0] * squares(output, target))
    trial.both(batches(3))
    for change in changes:
        for module in (*trial.whole, *trial.mine.values()):
            change(module)
        trial.both(batches(3))
    weight[0] = 3.0
    trial.both(batches(3))
    for module in trial.mine.values():
        module.inner.weight.register_hook(double)
    args, kwargs, targets = zip(*batches(3), strict=True)
    refused(PipelineError, "has a hook", lambda: trial.pipe.step_microbatches(args, kwargs, targets))


def who_prepares_again_and_again_is_told_why():
    trial = Trial(Scaled, "1f1b")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(10):
            for module in (*trial.whole, *trial.mine.values()):
                module.scale = 1.0 + step
            trial.both(batches(3))
    (text,) = [str(found.message) for found in caught if "prepared" in str(found.message)]
    assert re.search("has been prepared 8 times.*scale", text), text


def a_loss_may_be_a_module_with_buffers():
    for name in SCHEDULES:
        loss = nn.CrossEntropyLoss(weight=torch.arange(1.0, 7.0))
        trial = Trial(Linear, name, loss_fn=loss)
        calls: list = [(args, {}, torch.arange(2) + at) for at, (args, _, _) in enumerate(batches(3))]
        trial.both(calls)
        loss.weight.mul_(2.0)
        loss.weight[0] = 9.0
        trial.both(calls)
        loss.weight, loss.label_smoothing = torch.arange(7.0, 1.0, -1.0), 0.3
        trial.both(calls)
    trial = Trial(Linear, "1f1b", loss_fn=Distance(nn.Linear(6, 6)))
    args, _, targets = zip(*batches(3), strict=True)
    refused(
        PipelineError,
        "loss_fn has a parameter, inner.weight",
        lambda: trial.pipe.step_microbatches(args, None, targets),
    )


class Distance(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, output, target):
        return squares(self.inner(output), target)


def a_step_that_failed_keeps_nothing():
    trial = Trial(Linear, "gpipe", 4)
    if trial.pipe.group is not None:
        return
    x, y = whole_batch(batches(4))
    trial.pipe.prepare(x, target=y)
    stages: set[LocalStage] = set()
    original = LocalStage.start_backward

    def failing(stage, *args):
        stages.add(stage)
        original(stage, *args)
        raise ValueError("boom")

    with unittest.mock.patch.object(LocalStage, "start_backward", failing):
        refused(PipelineError, "in 0B0 (stage 0, microbatch 0): ValueError: boom", lambda: trial.pipe.step(x, target=y))
    assert [stage.in_flight for stage in stages] == [0]


def dropout_is_the_same_in_forward_and_backward():
    class Dropped(nn.Module):
        """Linear in its weight, so that weight times gradient is the loss, whatever is dropped."""

        def __init__(self, stage, *_):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(6) + 0.5)
            self.first = stage == 0

        def forward(self, x):
            return torch.nn.functional.dropout(x * self.weight, 0.2)

    for name in SCHEDULES:
        trial = Trial(Dropped, name, 4, loss_fn=lambda output, target: (output * target).sum())
        torch.manual_seed(trial.rank)
        x, y = whole_batch(batches(4))
        losses = trial.pipe.step(x, target=y)
        inner = [float((m.weight.grad * m.weight).sum()) for m in trial.mine.values()]
        total = torch.tensor([float(sum(losses)) if losses is not None else 0.0])
        if trial.pipe.group is not None:
            dist.all_reduce(total, group=trial.pipe.group)
        assert all(abs(found - float(total)) < 1e-12 for found in inner), (inner, total)
        assert losses is None or len({float(loss) for loss in losses}) > 1
    if trial.pipe.group is None:  # one stage, one microbatch: the random numbers are eager's
        trial = Trial(Dropped, "gpipe", 1, loss_fn=lambda output, target: (output * target).sum())
        torch.manual_seed(3)
        expected = trial.eager(batches(1))
        torch.manual_seed(3)
        (args, _, target) = batches(1)[0]
        trial.check_losses(trial.pipe.step(*args, target=target), expected)
        trial.check()


class Embedding(nn.Module):
    """Tokens to rows on the first stage, rows to scores by the same matrix on the last."""

    def __init__(self, stage, count):
        super().__init__()
        torch.manual_seed(5)
        table = nn.Parameter(torch.randn(9, 6))
        self.first, self.last = stage == 0, stage == count - 1
        if self.first:
            self.embed = nn.Embedding(9, 6, _weight=table)
        torch.manual_seed(6 + stage)
        self.inner = nn.Linear(6, 6)
        if self.last:
            self.head = nn.Linear(6, 9, bias=False)
            self.head.weight = self.embed.weight if self.first else nn.Parameter(table.detach().clone())

    def forward(self, x):
        y = torch.tanh(self.inner(self.embed(x) if self.first else x))
        return self.head(y) if self.last else y


def entropy(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def tie(stages):
    last = max(stages)
    if 0 in stages and hasattr(stages[last], "head"):
        stages[last].head.weight = stages[0].embed.weight


def tied_trial(name):
    """With the last stage's matrix tied to the first's, wherever the two are."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    stages = ap.schedule(name, ranks=ranks, microbatches=3).placement.stages
    modules = {stage: seeded(Embedding, stage, stages) for stage in range(stages)}
    tie(modules)
    tied = ap.tied_parameters(list(modules.values()))
    assert tied == ({f"{stages - 1}.head.weight": "0.embed.weight"} if stages > 1 else {})
    return Trial(Embedding, name, loss_fn=entropy, tie=tie, tied=tied)


def tokens(seed):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randint(9, (2, 4), generator=generator) for _ in range(3)]
    return [((x,), {}, x.roll(1)) for x in made]


def tied_parameters_have_one_gradient_and_stay_identical():
    """On one stage, two stages of a rank, and two ranks; the norm counts them once."""
    for name in SCHEDULES:
        trial = tied_trial(name)
        optimizers = [torch.optim.AdamW(found, lr=0.1) for found in (trial.parameters(), trial.pipe.parameters())]
        for step in range(3):
            trial.both(tokens(step))
            trial.both(tokens(step + 10))
            for norm_type in (2.0, 1.0, float("inf")):
                expected = torch.nn.utils.clip_grad_norm_(trial.parameters(), 0.5, norm_type)
                close(ap.clip_grad_norm_(trial.pipe, 0.5, norm_type), expected, "norm")
            trial.check()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        copies = [module.head.weight.detach() for module in trial.mine.values() if hasattr(module, "head")]
        copies += [trial.mine[0].embed.weight.detach()] if 0 in trial.mine else []
        if dist.is_initialized():
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, copies)
            copies = [copy for found in everyone for copy in found]
        assert all(torch.equal(copy, copies[0]) for copy in copies)


def a_tied_parameter_that_nothing_uses_has_no_gradient():
    class Unused(Linear):
        def __init__(self, stage, count):
            super().__init__()
            self.extra = nn.Parameter(torch.ones(3))

    for name in SCHEDULES:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        last = ap.schedule(name, ranks=ranks, microbatches=3).placement.stages - 1
        trial = Trial(Unused, name, tie=share_extra, tied={f"{last}.extra": "0.extra"} if last else {})
        trial.both(batches(3))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.first, self.last = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(torch.tanh(self.last(torch.tanh(self.first(self.embed(x))))))


def parameters_that_split_has_seen_in_two_stages_are_tied():
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks > 2:
        return
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(4)
    whole, model = Language(), Language()
    model.load_state_dict(whole.state_dict())
    stages = ap.split(model, at=["last"])
    schedule = ap.schedule("1f1b" if ranks == 2 else "zbv", ranks=ranks, microbatches=2)
    mine = [stage if schedule.placement.rank_of[at] == rank else None for at, stage in enumerate(stages)]
    pipe = ap.Pipeline(copy.deepcopy(mine), schedule, loss_fn=entropy)
    ((x,), _, y), *_ = tokens(4)
    pipe.step(x, target=y)
    for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
        entropy(whole(a), b).backward()
    for name, parameter in pipe.named_parameters():
        close(parameter.grad, whole.get_parameter(name.partition(".")[2]).grad, name)


def share_extra(stages):
    if 0 in stages and max(stages):
        stages[max(stages)].extra = stages[0].extra


def copies_of_a_tied_parameter_that_differ_are_refused_everywhere():
    """On one rank there are no copies."""
    trial = tied_trial("1f1b")
    last = len(trial.whole) - 1
    if last == 0:
        trial.both(tokens(0))
        return
    if last in trial.mine:
        with torch.no_grad():
            trial.mine[last].head.weight += 1
    stages = [trial.mine.get(stage) for stage in range(len(trial.whole))]
    for wrong, match in (({"9.weight": "0.x"}, "no parameter of one of"), ({"0.embed.weight": "x"}, "'x' is no")):
        refused(PipelineError, match, lambda wrong=wrong: ap.Pipeline(stages, trial.schedule, tied=wrong))
    args, kwargs, targets = zip(*tokens(0), strict=True)
    refused(PipelineError, "have different values", lambda: trial.pipe.step_microbatches(args, kwargs, targets))


def as_many_microbatches_are_alive_as_the_simulator_says():
    """For each rank; under 1F1B as many with 16 microbatches as with 4."""
    peaks = {}
    others = [(name, 8) for name in SCHEDULES if name != "1f1b"]
    for name, microbatches in (("1f1b", 4), ("1f1b", 16), ("gpipe", 4), ("zb-h1", 5), *others):
        trial = Trial(Linear, name, microbatches)
        stages: set[LocalStage] = set()
        alive = [0]
        original = LocalStage.start_forward

        def counted(stage, *args, original=original, stages=stages, alive=alive):
            original(stage, *args)
            stages.add(stage)
            alive.append(sum(found.in_flight for found in stages))

        with unittest.mock.patch.object(LocalStage, "start_forward", counted):
            x, y = whole_batch(batches(microbatches))
            trial.pipe.step(x, target=y)
        expected = ap.simulate(trial.pipe.schedule).peaks[trial.rank]
        assert max(alive) == expected, (name, microbatches, alive, expected)
        assert not any(stage.in_flight for stage in stages)
        peaks[name, microbatches] = max(alive)
    assert peaks["1f1b", 4] == peaks["1f1b", 16]


def a_step_leaves_no_tensor_but_gradients_and_losses():
    def alive():
        gc.collect()
        return sum(isinstance(found, torch.Tensor) and type(found) is torch.Tensor for found in gc.get_objects())

    for name in SCHEDULES:
        trial = Trial(Linear, name, 4)
        x, y = whole_batch(batches(4))
        trial.pipe.prepare(x, target=y)
        before = alive()
        losses = trial.pipe.step(x, target=y)
        gradients = len(list(trial.pipe.parameters()))
        assert alive() - before == gradients + len(losses or []), (alive() - before, gradients)
        trial.pipe.step(x, target=y)
        outputs = trial.pipe.eval(x)
        del outputs
        assert alive() - before == gradients + len(losses or []), (alive() - before, gradients)
        del losses


def a_schedule_changes_no_bit():
    """Each stage adds up gradients in the order of microbatches, as eager does; if need be, where it is asked to."""
    torch.set_default_dtype(torch.float32)
    try:
        for name in ("gpipe", "looped-bfs", "zb-h1", *SCHEDULES):
            trial = Trial(Linear, name, 5, fixed_sums=name == "looped-bfs")
            calls = as_float(batches(5))
            expected = trial.eager(calls)
            losses = trial.pipe.step_microbatches(*zip(*calls, strict=True))
            assert losses is None or all(torch.equal(*pair) for pair in zip(losses, expected, strict=True))
            trial.check(tolerance=0.0)
    finally:
        torch.set_default_dtype(torch.float64)


CASES = (
    losses_are_normalised_by_all_tokens_of_a_batch,
    outputs_of_a_step_are_kept_on_request_only,
    auxiliary_losses_are_differentiated_on_every_stage,
    frozen_parameters_get_no_gradient,
    parameters_may_be_frozen_and_trained_again,
    buffers_are_updated_once_in_the_order_of_microbatches,
    preparing_changes_nothing,
    evaluation_is_possible_at_any_time,
    shapes_and_modes_may_change_between_steps,
    changes_of_python_values_between_steps_are_noticed,
    who_prepares_again_and_again_is_told_why,
    a_loss_may_be_a_module_with_buffers,
    a_step_that_failed_keeps_nothing,
    dropout_is_the_same_in_forward_and_backward,
    tied_parameters_have_one_gradient_and_stay_identical,
    parameters_that_split_has_seen_in_two_stages_are_tied,
    a_tied_parameter_that_nothing_uses_has_no_gradient,
    copies_of_a_tied_parameter_that_differ_are_refused_everywhere,
    as_many_microbatches_are_alive_as_the_simulator_says,
    a_step_leaves_no_tensor_but_gradients_and_losses,
    a_schedule_changes_no_bit,
)


if __name__ == "__main__":
    run_cases(CASES)
