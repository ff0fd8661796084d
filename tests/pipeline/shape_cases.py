"""Rank program: pipelines that are no chain, beside the unsplit model: towers, skips, two copies, operations.

argument: names of cases; all of them if none
output: JSON of what went wrong, by case
"""

import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import annopipe as ap
from annopipe.errors import PipelineError
from tests.pipeline.trial import close, refused, run_cases

WIDTH = 6


class Block(nn.Module):
    """Takes any number of inputs; the first one decides what goes through unchanged."""

    def __init__(self, inputs=1, *, outputs=1):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(inputs))
        self.outputs = outputs

    def forward(self, *values):
        found = values[0] + sum(torch.tanh(part(value)) for part, value in zip(self.parts, values, strict=True))
        return found if self.outputs == 1 else (found, 2 * found)


class Tower(nn.Module):
    """Takes its input by the name of the tower."""

    def __init__(self, name):
        super().__init__()
        self.linear, self.name = nn.Linear(WIDTH, WIDTH), name


class Image(Tower):
    def forward(self, image):
        return torch.tanh(self.linear(image))


class Text(Tower):
    def forward(self, text):
        return torch.sin(self.linear(text))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, image, text):
        return F.normalize(image * self.scale, dim=-1), F.normalize(text, dim=-1)


def squares(output, target):
    return ((output - target) ** 2).mean()


def contrastive(output, _):
    """Every image with every text of the batch."""
    scores = 5 * output[0] @ output[1].T
    labels = torch.arange(scores.shape[0])
    return F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)


class Tempered(nn.Module):
    """A loss with a temperature of its own."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, output, target):
        return self.temperature * contrastive(output, target)


def ranks():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def build(index, make):
    torch.manual_seed(50 + index)
    return make()


def held(placement, makes):
    """This rank's stages, and all of them for the unsplit model."""
    mine = [build(s, make) if placement.rank_of[s] == rank() else None for s, make in enumerate(makes)]
    return mine, [build(s, make) for s, make in enumerate(makes)]


def check(mine, whole, tolerance=1e-12):
    for index, module in enumerate(mine):
        expected = dict(whole[index].named_parameters())
        for name, parameter in module.named_parameters() if module is not None else ():
            close(parameter.grad, expected[name].grad, f"gradient of {index}.{name}", tolerance)


def train(mine, whole):
    """A step of the same optimizer on both, so that the next one sees other values."""
    for modules in (mine, whole):
        parameters = [p for module in modules if module is not None for p in module.parameters()]
        if parameters:
            optimizer = torch.optim.SGD(parameters, lr=0.05)
            optimizer.step()
            optimizer.zero_grad()


def batch(microbatches, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2 * microbatches, WIDTH, generator=generator) for _ in range(3)]


def run_dag(placement, makes, forward, *, microbatches, steps=2):
    """Train as the unsplit model; `forward(stages, x)` is one microbatch of it."""
    for priority in (("B", "F"), ("I", "F", "W")):
        mine, whole = held(placement, makes)
        schedule = ap.ScheduleSpec(placement, microbatches, priority=priority).build()
        pipe = ap.Pipeline(mine, schedule, loss_fn=squares)
        for step in range(steps):
            x, y, _ = batch(microbatches, step)
            losses = pipe.step(x, target=y)
            expected = [
                squares(forward(whole, a), b) for a, b in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True)
            ]
            sum(expected).backward()
            assert (losses is not None) == pipe.holds_last
            for loss, other in zip(losses or expected, expected, strict=True):
                close(loss, other.detach(), "loss")
            check(mine, whole)
            train(mine, whole)
        outputs = pipe.eval(x)
        if outputs is not None:
            close(torch.cat(outputs), forward(whole, x).detach(), "output")


def skip(stages, x):
    first = stages[0](x)
    return stages[3](first, stages[2](stages[1](first)))


def a_connection_that_skips_stages_trains_exactly():
    for rank_of in ([0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 1, 1]) if ranks() < 4 else ([0, 1, 2, 3], [2, 0, 3, 1]):
        placement = ap.placement.custom([at % ranks() for at in rank_of], edges=[(0, 1), (1, 2), (2, 3), (0, 3)])
        for microbatches in (1, 4):
            run_dag(placement, [Block, Block, Block, lambda: Block(2)], skip, microbatches=microbatches)


def an_output_that_three_stages_take_gets_the_sum_of_their_gradients():
    placement = ap.placement.custom(
        [at % ranks() for at in ((0, 1, 0, 1, 1) if ranks() < 4 else (0, 1, 2, 3, 1))],
        edges=[
            (0, 1),
            (0, 2),
            (0, 3),
            (1, 4),
            (2, 4),
            (3, 4),
        ],
    )

    def forward(stages, x):
        first = stages[0](x)
        return stages[4](*(stage(*first) for stage in stages[1:4]))

    makes = [lambda: Block(outputs=2), *[lambda: Block(2)] * 3, lambda: Block(3)]
    run_dag(placement, makes, forward, microbatches=4)


def towers_meet_and_take_their_inputs_by_name():
    if ranks() > 2:
        return
    placement = ap.placement.towers([0], [1 % ranks()], top=[0])
    makes = [lambda: Image("image"), lambda: Text("text"), lambda: Block(2)]
    mine, whole = held(placement, makes)
    pipe = ap.Pipeline(mine, ap.ScheduleSpec(placement, 4).build(), loss_fn=squares)
    image, text, target = batch(4)
    pipe.step(image=image, text=text, target=target)
    for a, b, c in zip(image.chunk(4), text.chunk(4), target.chunk(4), strict=True):
        squares(whole[2](whole[0](a), whole[1](b)), c).backward()
    check(mine, whole)


def a_loss_over_the_whole_batch_has_the_gradients_of_one_call():
    if ranks() > 2:
        return
    placement = ap.placement.towers([0], [1 % ranks()], top=[ranks() - 1], batch_wide=True)
    for scale in (1.0, 0.25):
        mine, whole = held(placement, [lambda: Image("image"), lambda: Text("text"), Both])
        schedule = ap.ScheduleSpec(placement, 4, priority=("B", "F")).build()
        pipe = ap.Pipeline(mine, schedule, loss_fn=contrastive)
        for step in range(2):
            image, text, _ = batch(4, step)
            losses = pipe.step(image=image, text=text, loss_scale=scale)
            loss = contrastive(whole[2](whole[0](image), whole[1](text)), None)
            (scale * loss).backward()
            check(mine, whole)
            train(mine, whole)
            if losses is not None:
                (found,) = losses
                close(found, loss.detach(), "loss")


def a_loss_over_the_whole_batch_that_is_trained_itself_is_refused():
    if ranks() > 2:
        return
    placement = ap.placement.towers([0], [1 % ranks()], top=[ranks() - 1], batch_wide=True)
    schedule = ap.ScheduleSpec(placement, 4).build()
    image, text, target = batch(4)

    def step(loss_fn, target=None):
        mine, _ = held(placement, [lambda: Image("image"), lambda: Text("text"), Both])
        ap.Pipeline(mine, schedule, loss_fn=loss_fn).step(image=image, text=text, target=target)

    refused(PipelineError, "loss_fn has a parameter, temperature, that requires grad", lambda: step(Tempered()))
    step(Tempered().requires_grad_(requires_grad=False))
    refused(PipelineError, "given target, that requires grad", lambda: step(contrastive, target.requires_grad_()))
    if ranks() == 1:  # found in the step, after which the connections would be closed
        scale = torch.ones((), requires_grad=True)
        refused(
            PipelineError,
            "reads a tensor of shape () that requires grad",
            lambda: step(lambda output, target: scale * contrastive(output, target)),
        )


def two_copies_of_the_model_add_up_to_the_gradients_of_one():
    if ranks() % 2:
        return
    for name in ("dualpipe", "chimera"):
        for microbatches in (1, 3, 8):  # the grid of gradients has the others
            schedule = ap.schedule(name, ranks=ranks(), microbatches=microbatches)
            count = ranks()
            own = {schedule.placement.weights_of[s] for s in schedule.placement.stages_on[rank()]}
            mine = [build(s, Block) if s in own else None for s in range(count)]
            whole = [build(s, Block) for s in range(count)]
            again = {0: "all"} if microbatches == 1 else None  # on both copies
            pipe = ap.Pipeline(mine, schedule, loss_fn=squares, fixed_sums=microbatches == 3, recompute=again)
            for step in range(2):
                if step:
                    train(mine, whole)
                x, y, _ = batch(microbatches, step)
                losses = pipe.step(x, target=y)
                expected = []
                for a, b in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
                    expected.append(squares(nn.Sequential(*whole)(a), b))
                    expected[-1].backward()
                check(mine, whole)
                seen = [
                    m
                    for s in pipe.schedule.placement.output_stages
                    if s in schedule.placement.stages_on[rank()]
                    for m in pipe.schedule.placement.microbatches_of(s, microbatches)
                ]
                assert (losses is not None) == pipe.holds_last, "a copy without microbatches has an empty list"
                assert len(losses or []) == len(seen)
                for m, loss in zip(seen, losses or [], strict=True):
                    close(loss, expected[m].detach(), "loss")
            parameters = [p for part in whole for p in part.parameters()]
            close(ap.clip_grad_norm_(pipe, 0.1), nn.utils.clip_grad_norm_(parameters, 0.1).double(), "norm")


class Biased(Block):
    """With a buffer that a checkpoint holds."""

    def __init__(self, bias):
        super().__init__()
        self.register_buffer("bias", torch.full((WIDTH,), float(bias)))

    def forward(self, x):
        return super().forward(x) + self.bias


def copies_with_other_buffers_are_refused_everywhere():
    if ranks() % 2:
        return
    schedule = ap.schedule("dualpipe", ranks=ranks(), microbatches=2)
    own = {schedule.placement.weights_of[s] for s in schedule.placement.stages_on[rank()]}
    x, y, _ = batch(2)

    def step(bias):
        mine = [build(s, lambda: Biased(bias)) if s in own else None for s in range(ranks())]
        ap.Pipeline(mine, schedule, loss_fn=squares).step(x, target=y)

    step(1)
    refused(ap.PipelineError, "have different values: load or initialise them alike", lambda: step(rank()))


def operations_may_move_what_is_saved_away_and_back():
    spec = dataclasses.replace(
        ap.schedule_spec("1f1b", ranks=ranks(), microbatches=4),
        operations=(ap.Operation("OFFLOAD", after="F"), ap.Operation("ONLOAD", before="B")),
    )
    schedule = spec.build()
    count = ranks()
    mine, whole = held(schedule.placement, [Block] * count)
    pipe = ap.Pipeline(mine, schedule, loss_fn=squares)
    moved = []

    def offload(stage, microbatch):
        pipe.map_saved(stage, microbatch, lambda tensor: moved.append(stage) or -tensor)

    def onload(stage, microbatch):
        pipe.map_saved(stage, microbatch, torch.neg)

    pipe.register("OFFLOAD", offload)
    pipe.register("ONLOAD", onload)
    x, y, _ = batch(4)
    pipe.step(x, target=y)
    assert moved
    for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
        squares(nn.Sequential(*whole)(a), b).backward()
    check(mine, whole)


CASES = (
    a_connection_that_skips_stages_trains_exactly,
    an_output_that_three_stages_take_gets_the_sum_of_their_gradients,
    towers_meet_and_take_their_inputs_by_name,
    a_loss_over_the_whole_batch_has_the_gradients_of_one_call,
    a_loss_over_the_whole_batch_that_is_trained_itself_is_refused,
    two_copies_of_the_model_add_up_to_the_gradients_of_one,
    copies_with_other_buffers_are_refused_everywhere,
    operations_may_move_what_is_saved_away_and_back,
)

if __name__ == "__main__":
    run_cases(CASES)
