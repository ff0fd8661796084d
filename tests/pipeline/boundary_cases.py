"""Rank program: what may cross from stage to stage, and what a step may be called with."""

import logging

import torch
from torch import nn

import annopipe as ap
from annopipe.errors import PipelineError
from tests.pipeline import recompute_cases
from tests.pipeline.trial import SCHEDULES, Trial, batches, close, refused, run_cases, squares


class Linear(nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


def everything_that_is_a_pytree_crosses():
    """Nested containers, None, numbers, texts, masks, integers, views and transposed tensors, an output nobody uses."""

    class Stage(nn.Module):
        def __init__(self, stage, count):
            super().__init__()
            self.inner, self.first, self.last = nn.Linear(6, 6), stage == 0, stage == count - 1

        def forward(self, state, masks=None, scale=1.0):
            if self.first:
                state, masks, scale = {"x": state, "extra": None}, [state > 0, torch.arange(2)], 0.5
            mask, numbers = masks
            x = torch.tanh(self.inner(state["x"])) * scale * mask + numbers[:, None]
            if self.last:
                return x
            wide = torch.cat([x, x.detach()], 1)
            made = {"x": wide[:, :6].t().contiguous().t(), "extra": (x * 3, None, "text")}
            return made, [mask.logical_not(), numbers + 1], scale * 2

    for name in SCHEDULES[-2:]:
        Trial(Stage, name).both(batches(3))


def one_tensor_is_returned_twice_and_an_input_as_it_came():
    class Stage(nn.Module):
        def __init__(self, stage, count):
            super().__init__()
            self.inner, self.last = nn.Linear(6, 6), stage == count - 1

        def forward(self, x, same=None, passed=None):
            y = torch.tanh(self.inner(x))
            if same is not None:
                y = y * same + passed
            return y if self.last else (y, y, x)

    for name in SCHEDULES[-2:]:
        Trial(Stage, name).both(batches(3))


def stages_without_parameters_hand_gradients_on():
    """A view, the identity, and a stage that only multiplies, between stages with parameters."""

    class View(nn.Module):
        def forward(self, x):
            return x.view(3, 4) if x.shape[0] == 2 else x.reshape(2, 6)

    class Half(nn.Module):
        def forward(self, x):
            return x / 2

    def build(stage, count):
        kinds = [Linear(), nn.Identity(), Half(), Linear()] if count < 5 else [Linear(), View(), View(), Half()]
        return kinds[stage % len(kinds)]

    for name in SCHEDULES[-2:]:
        Trial(build, name).both(batches(3))


def views_of_a_stages_input_have_gradients():
    class Cut(nn.Module):
        def __init__(self, stage, count):
            super().__init__()
            self.inner, self.stage = nn.Linear(6, 6), stage

        def forward(self, x):
            return x[:, [5, 4, 3, 2, 1, 0]].flip(0) if self.stage % 2 else self.inner(x).transpose(0, 1).t()

    for name in SCHEDULES[-2:]:
        Trial(Cut, name).both(batches(3))


def what_no_loss_depends_on_has_no_gradient():
    """The first stages' second output is never used, and a detached value cuts all stages before it off."""

    class Side(nn.Module):
        def __init__(self, stage, count):
            super().__init__()
            self.inner, self.side, self.last = nn.Linear(6, 6), nn.Linear(6, 6), stage == count - 1

        def forward(self, x, _=None):
            y = self.inner(x)
            return y if self.last else (y, self.side(x))

    class Cut(nn.Module):
        def __init__(self, stage, count):
            super().__init__()
            self.inner, self.cuts = nn.Linear(6, 6), stage == count - 1 and count > 1

        def forward(self, x):
            return self.inner(x.detach() if self.cuts else x)

    for name in SCHEDULES[-2:]:
        Trial(Side, name).both(batches(3))
        Trial(Cut, name).both(batches(3))


def a_gradient_that_nobody_has_is_no_zero_that_meets_an_infinity():
    """The second outputs are never used; their derivatives at 0 are infinite."""

    class Logarithms(nn.Module):
        def __init__(self, stage, count):
            super().__init__()
            self.inner, self.last = nn.Linear(6, 6), stage == count - 1
            self.register_buffer("some", torch.tensor([0.0, 1, 1, 1, 1, 1]))

        def forward(self, x, *_):
            y = torch.tanh(self.inner(x)) * self.some
            return y if self.last else (torch.cat(y.chunk(2)), y.abs().log(), y.chunk(2)[1].abs().sqrt())

    for name in SCHEDULES[-2:]:
        Trial(Logarithms, name).both(batches(3))


class Constant(torch.autograd.Function):
    """Hands its first argument on; the gradient of the second is a constant, as where Megatron-LM adds losses."""

    @staticmethod
    def forward(ctx, x, added):
        ctx.save_for_backward(added)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.full_like(ctx.saved_tensors[0], 0.5)


def a_custom_function_may_return_a_constant_gradient():
    class Balanced(nn.Module):
        def __init__(self, *_):
            super().__init__()
            self.inner, self.router = nn.Linear(6, 6), nn.Linear(6, 3)
            self.unused = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return Constant.apply(torch.tanh(self.inner(x)), self.router(x).softmax(-1).square().mean())

    for name in SCHEDULES[-2:]:
        Trial(Balanced, name).both(batches(3))


class Open(nn.Module):
    """Takes what it is not named after, as the layers of large libraries do."""

    def __init__(self, *_):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x, **others):
        y = torch.tanh(self.inner(x))
        return (y * others["mask"] * others.get("power", 1.0),)


def keyword_arguments_reach_a_stage_that_takes_any():
    def loss_of(output, target):
        return squares(output[0], target)

    for name in SCHEDULES[-2:]:
        trial = Trial(Open, name, loss_fn=loss_of)
        args, _, targets = zip(*batches(3), strict=True)
        masks = [x.flip(0) > 0 for (x,) in args]
        for power in (2.0, 3.0):
            kwargs = [{"mask": mask, "power": power} for mask in masks]
            expected = []
            for value, named, target in zip(args, kwargs, targets, strict=True):
                result = value
                for stage in trial.whole:
                    result = stage(*result, **named)
                expected.append(loss_of(result, target))
                expected[-1].backward()
            trial.check_losses(trial.pipe.step_microbatches(args, kwargs, targets), [e.detach() for e in expected])
            trial.check()


class Masked(nn.Module):
    """Uses a mask everywhere, and positions and offsets where it is told to."""

    def __init__(self, *_):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x, mask, offsets=None, power=1.0):
        y = torch.tanh(self.inner(x)) * mask
        return y if offsets is None else y * offsets.sum() * power


def masks_and_offsets_differ_by_microbatch():
    for name in SCHEDULES[-2:]:
        calls = [
            ((x,), {"mask": x.flip(0) > 0, "offsets": torch.tensor([index, 3])}, y)
            for index, ((x,), _, y) in enumerate(batches(4, seed=3))
        ]
        Trial(Masked, name, 4).both(calls)


def what_is_not_cut_is_named():
    calls = batches(4)
    x, y = torch.cat([call[0][0] for call in calls]), torch.cat([call[2] for call in calls])
    mask, offsets, scalar = x.flip(0) > 0, torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(2.0)
    trial = Trial(Masked, "zbv", 4, batch_dims={"offsets": None, "power": None})
    whole = {"offsets": offsets, "power": scalar}
    expected = trial.eager(
        [((part,), {"mask": m, **whole}, t) for part, m, t in zip(x.chunk(4), mask.chunk(4), y.chunk(4), strict=True)]
    )
    trial.check_losses(trial.pipe.step(x, target=y, mask=mask, **whole), expected)
    trial.check()
    plain = Trial(Masked, "zbv", 4)
    refused(PipelineError, "power has shape ()", lambda: plain.pipe.step(x, target=y, mask=mask, power=scalar))
    one = torch.ones(1)
    refused(PipelineError, "offsets has shape (1,)", lambda: plain.pipe.step(x, target=y, mask=mask, offsets=one))
    refused(
        PipelineError,
        "offsets is 4 long in dimension 0, and",
        lambda: plain.pipe.step(x, target=y, mask=mask, offsets=offsets),
    )


def the_batch_may_be_another_dimension():
    x, y = (torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    trial = Trial(Linear, "1f1b", 4, batch_dims={"x": 1, "target": -2})
    expected = trial.eager([((p,), {}, t) for p, t in zip(x.chunk(4, 1), y.chunk(4, 1), strict=True)])
    trial.check_losses(trial.pipe.step(x, target=y), expected)
    trial.check()


def a_keyword_that_no_stage_has_is_refused_everywhere():
    trial = Trial(Linear)
    calls = batches(3)
    x, y = torch.cat([call[0][0] for call in calls]), torch.cat([call[2] for call in calls])
    refused(PipelineError, "no stage has a parameter named musk", lambda: trial.pipe.step(x, target=y, musk=1))
    trial = Trial(Linear, batch_dims={"x": 0, "musk": None})
    message = "batch_dims has 'musk', and no stage is given an argument of that name in a step: the names are target, x"
    refused(PipelineError, message, lambda: trial.pipe.step(x, target=y))


class Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.told: list[str] = []

    def emit(self, record):
        self.told.append(record.getMessage())


def preparing_says_once_per_stage_what_it_does():
    """To those who ask: nothing is printed without."""
    trial, log, handler = Trial(Linear), logging.getLogger("annopipe"), Told()
    told = handler.told
    log.addHandler(handler)
    args, kwargs, targets = zip(*batches(3), strict=True)
    try:
        trial.pipe.step_microbatches(args, kwargs, targets)
        assert not told
        log.setLevel(logging.INFO)
        trial.zero()
        trial.pipe.eval(torch.ones(6, 6))
        trial.pipe.eval(torch.ones(6, 6))
    finally:
        log.setLevel(logging.NOTSET)
        log.removeHandler(handler)
    held, count = sorted(trial.mine), trial.placement.stages
    expected = [f"rank {trial.rank}: tracing stage {stage} of {count} for eval" for stage in held]
    assert told[:-1] == expected
    assert told[-1].startswith(f"rank {trial.rank}: stages {held} ready after ")


def constants_that_differ_by_microbatch_are_refused():
    trial = Trial(Masked)
    calls = [((x,), {"mask": x > 0, "power": float(index)}, y) for index, ((x,), _, y) in enumerate(batches(3))]
    args, kwargs, targets = zip(*calls, strict=True)
    refused(
        PipelineError,
        "microbatch 1 has other shapes, dtypes or constants",
        lambda: trial.pipe.step_microbatches(args, kwargs, targets),
    )


def inputs_and_labels_are_only_needed_where_they_are_used():
    for name in SCHEDULES[-2:]:
        trial = Trial(Linear, name)
        calls = batches(3)
        expected = trial.eager(calls)
        x, y = torch.cat([call[0][0] for call in calls]), torch.cat([call[2] for call in calls])
        inputs = (x,) if 0 in trial.mine else ()
        trial.check_losses(trial.pipe.step(*inputs, target=y if trial.pipe.holds_last else None), expected)
        trial.check()


def the_callers_tensors_get_gradients():
    """An embedding that the caller computes, and a keyword argument of every stage."""

    class Scaled(nn.Module):
        def __init__(self, *_):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x, scale):
            return torch.tanh(self.inner(x)) * scale

    for name in SCHEDULES[-2:]:
        trial = Trial(Scaled, name, batch_dims={"scale": None})
        table = torch.randn(9, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
        scale = torch.ones(1).requires_grad_()
        tokens, y = torch.arange(6) % 4, torch.cat([call[2] for call in batches(3)])
        parts = zip(tokens.chunk(3), y.chunk(3), strict=True)
        trial.eager([((table[part],), {"scale": scale}, target) for part, target in parts])
        expected, table.grad, scale.grad = (table.grad, scale.grad), None, None
        trial.pipe.step(table[tokens], target=y, scale=scale)
        trial.check()
        assert (table.grad is not None) == (0 in trial.mine)
        if table.grad is not None:
            close(table.grad, expected[0], "table")
        if len(trial.mine) == len(trial.whole):
            close(scale.grad, expected[1], "scale")


def a_target_that_requires_a_gradient_gets_one():
    for name in SCHEDULES[-2:]:
        trial = Trial(Linear, name)
        x, y = torch.cat([c[0][0] for c in batches(3)]), torch.ones(6, 6).requires_grad_()
        trial.eager([((a,), {}, b) for a, b in zip(x.chunk(3), y.chunk(3), strict=True)])
        expected, y.grad = y.grad, None
        trial.pipe.step(x, target=y)
        assert (y.grad is not None) == trial.pipe.holds_last
        if y.grad is not None:
            close(y.grad, expected, "target")


def a_batch_may_be_empty():
    trial = Trial(Linear, loss_fn=lambda output, target: ((output - target) ** 2).sum())
    losses = trial.pipe.step(torch.ones(0, 6), target=torch.ones(0, 6))
    assert losses is None or not any(losses)
    assert all(not parameter.grad.any() for parameter in trial.pipe.parameters())


def stages_have_dtypes_of_their_own():
    """A bfloat16 stage between others, and autocast."""

    class Half(nn.Module):
        def __init__(self, stage, count):
            super().__init__()
            self.dtype = torch.bfloat16 if stage % 2 else torch.float32
            self.inner = nn.Linear(6, 6, dtype=self.dtype)

        def forward(self, x):
            return self.inner(x.to(self.dtype))

    def loss_of(output, target):
        return squares(output.float(), target.float())

    for name in SCHEDULES[-2:]:
        trial = Trial(Half, name, loss_fn=loss_of)
        trial.both(batches(3))
        with torch.autocast("cpu", torch.bfloat16):
            trial.zero()
            trial.eager(batches(3, seed=1))
            args, kwargs, targets = zip(*batches(3, seed=1), strict=True)
            trial.pipe.step_microbatches(args, kwargs, targets)
            trial.check(tolerance=2e-2)


def a_pipeline_without_any_loss_is_refused():
    trial = Trial(Linear)
    stages = [trial.mine.get(stage) for stage in range(len(trial.whole))]
    pipe = ap.Pipeline(stages, trial.schedule)
    refused(PipelineError, "there is no loss", lambda: pipe.step(torch.ones(6, 6)))


CASES = (
    everything_that_is_a_pytree_crosses,
    one_tensor_is_returned_twice_and_an_input_as_it_came,
    stages_without_parameters_hand_gradients_on,
    views_of_a_stages_input_have_gradients,
    what_no_loss_depends_on_has_no_gradient,
    a_gradient_that_nobody_has_is_no_zero_that_meets_an_infinity,
    a_custom_function_may_return_a_constant_gradient,
    keyword_arguments_reach_a_stage_that_takes_any,
    masks_and_offsets_differ_by_microbatch,
    what_is_not_cut_is_named,
    the_batch_may_be_another_dimension,
    a_keyword_that_no_stage_has_is_refused_everywhere,
    preparing_says_once_per_stage_what_it_does,
    constants_that_differ_by_microbatch_are_refused,
    inputs_and_labels_are_only_needed_where_they_are_used,
    the_callers_tensors_get_gradients,
    a_target_that_requires_a_gradient_gets_one,
    a_batch_may_be_empty,
    stages_have_dtypes_of_their_own,
    a_pipeline_without_any_loss_is_refused,
    *recompute_cases.CASES,
)


if __name__ == "__main__":
    run_cases(CASES)
