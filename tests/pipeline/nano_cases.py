"""Rank program: nano-batched actions, and combinations of one stage's microbatches, beside the unsplit model.

argument: names of cases; all of them if none
output: JSON of what went wrong, by case
"""

import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from tests.pipeline import shape_cases
from tests.pipeline.nano_batching import nano_batched
from tests.pipeline.recompute_cases import Kept
from tests.pipeline.shape_cases import Block, batch, build, check, contrastive, held, rank, ranks, skip, squares, train
from tests.pipeline.trial import Trial, close, refused, run_cases

WIDTH = 6


class Mlp(nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        with ap.region("mlp"):
            return x + self.down(torch.tanh(self.up(x)))


def calls_of(length, microbatches, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        ((torch.randn(length, 2, WIDTH, generator=generator),), {}, torch.randn(length, 2, WIDTH, generator=generator))
        for _ in range(microbatches)
    ]


def root_mean(output, target):
    """Not a sum over sequences."""
    return ((output - target) ** 2).mean().sqrt()


# Warm-up and cool-down of these are not combined; in steady state their partners are third lanes.
NAMES = ("dualpipev", "zbv", "1f1b")


def warm_up_and_cool_down_in_nano_batches_train_as_the_unsplit_model():
    for name in NAMES if ranks() < 4 else NAMES[:1]:
        microbatches = 2 * ranks() + 1
        found = []
        for policy in ("sequential", "alternate") if name == "dualpipev" else ("alternate",):
            trial = Trial(Mlp, name, microbatches, root_mean, change=nano_batched, policy=policy)
            if name == "dualpipev":
                several = [a for row in trial.schedule.ranks for a in row if len(a.parts) > 1]
                assert any(part.nano_batches > 1 for action in several for part in action.parts)
            trial.both(calls_of(5, microbatches))
            trial.check(1e-14)
            found.append([p.grad for p in trial.pipe.parameters()])
        assert all(torch.equal(a, b) for other in found for a, b in zip(found[0], other, strict=True)), name


def two_microbatches_of_one_stage_run_together():
    rows = {
        1: ["(0F0;0F1)OVERLAP 0F2/2 (0B0;0B1)OVERLAP 0B2/2"],
        2: ["(0F0;0F1)OVERLAP 0F2/2 (0I0;0I1)OVERLAP (0W0;0W1)OVERLAP 0B2/2"] * 2,
    }
    if ranks() > 2:
        return
    count = ranks()
    for last in ("(1F0;1F1)OVERLAP (1B0;1B1)OVERLAP 1F2/2 1B2/2", "1F0 1F1 1F2/3 (1B0;1B1;1B2/3)OVERLAP"):
        programs = [row.split() for row in (rows[count][0], last)[:count]]

        def changed(schedule, programs=programs):
            return ap.Schedule.of(schedule.placement, 3, programs)

        trial = Trial(Mlp, "gpipe", 3, root_mean, change=changed)
        trial.both(calls_of(3, 3))
        trial.check(1e-14)
        assert (("F", 0), ("F", 0)) in trial.pipe.plans() or trial.rank


def a_rank_keeps_as_many_bytes_as_with_whole_microbatches():
    found = []
    for change in (None, nano_batched):
        trial = Trial(Mlp, "zbv", 5, change=change)
        with Kept() as kept:
            trial.pipe.step_microbatches(*zip(*calls_of(5, 5), strict=True))
        found.append((kept.most, kept.after))
    assert found[0] == found[1], found


# A forward's and a backward's communication is 0.4 of their time; lanes hide three quarters of it.
LANES = {
    "F/2": 0.7,
    "I/2": 0.7,
    "B/2": 1.7,
    "F+B/2": 2.1,
    "F/2+B": 2.1,
    "F/2+B/2": 2.1,
    "F+F": 1.4,
    "F+W": 1.6,
    "I+W": 1.6,
}
COSTS = ap.costs.table(FB=2.1, exposed={"F": 0.4, "I": 0.4, "FB": 0.1}, lanes=LANES)


def what_costs_choose_trains_as_the_unsplit_model():
    name = "zb-h1" if ranks() < 4 else "dualpipev"
    trial = Trial(Mlp, name, 4, root_mean, change=lambda schedule: ap.with_nano_batches(schedule, COSTS))
    assert trial.schedule != ap.schedule(name, ranks=ranks(), microbatches=4), name
    trial.both(calls_of(3, 4))
    trial.check(1e-14)


def stages_that_are_no_chain_run_nano_batches():
    placement = ap.placement.custom([at % ranks() for at in range(4)], edges=[(0, 1), (1, 2), (2, 3), (0, 3)])
    mine, whole = held(placement, [Block, Block, Block, lambda: Block(2)])
    schedule = ap.ScheduleSpec(placement, 2, priority=("I", "F", "W")).build()
    pipe = ap.Pipeline(mine, nano_batched(schedule, wanted=lambda stage, _: stage in (0, 2, 3)), loss_fn=squares)
    x, y, _ = batch(2)
    pipe.step(x, target=y)
    for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
        squares(skip(whole, a), b).backward()
    check(mine, whole)


def a_loss_over_the_whole_batch_sees_whole_outputs():
    if ranks() > 2:
        return
    placement = ap.placement.towers([0], [1 % ranks()], top=[ranks() - 1], batch_wide=True)
    makes = [lambda: shape_cases.Image("image"), lambda: shape_cases.Text("text"), shape_cases.Both]
    mine, whole = held(placement, makes)
    schedule = nano_batched(ap.ScheduleSpec(placement, 4, priority=("B", "F")).build())
    pipe = ap.Pipeline(mine, schedule, loss_fn=contrastive)
    image, text, _ = batch(4)
    losses = pipe.step(image=image, text=text, loss_scale=0.5)
    loss = contrastive(whole[2](whole[0](image), whole[1](text)), None)
    (0.5 * loss).backward()
    check(mine, whole)
    if losses is not None:
        close(losses[0], loss.detach(), "loss")


def both_copies_of_a_model_run_nano_batches():
    if ranks() % 2:
        return
    schedule = nano_batched(ap.schedule("dualpipe", ranks=ranks(), microbatches=4))
    own = {schedule.placement.weights_of[s] for s in schedule.placement.stages_on[rank()]}
    mine = [build(s, Block) if s in own else None for s in range(ranks())]
    whole = [build(s, Block) for s in range(ranks())]
    pipe = ap.Pipeline(mine, schedule, loss_fn=squares)
    for step in range(2):
        x, y, _ = batch(4, step)
        pipe.step(x, target=y)
        for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
            squares(nn.Sequential(*whole)(a), b).backward()
        check(mine, whole)
        train(mine, whole)


def operations_move_what_nano_batches_have_saved():
    spec = dataclasses.replace(
        ap.schedule_spec("1f1b", ranks=ranks(), microbatches=4),
        operations=(ap.Operation("OFFLOAD", after="F"), ap.Operation("ONLOAD", before="B")),
    )
    trial = Trial(Mlp, microbatches=4, change=lambda _: nano_batched(spec.build()), recompute="mlp", fixed_sums=True)
    moved = []
    for name in ("OFFLOAD", "ONLOAD"):
        trial.pipe.register(
            name, lambda s, m: trial.pipe.map_saved(s, m, lambda tensor: moved.append(s) or (-tensor).contiguous())
        )
    trial.both(calls_of(3, 4))
    assert moved


class Counts(Mlp):
    def __init__(self, stage, stages):
        super().__init__()
        self.is_last = stage == stages - 1
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.is_last:
            self.get_buffer("seen").add_(1)
        return super().forward(x)


def what_one_rank_cannot_run_is_refused_on_all():
    trial = Trial(Counts, change=nano_batched)
    args, kwargs, targets = zip(*calls_of(4, 3), strict=True)
    refused(
        ap.PipelineError,
        f"stage {ranks() - 1} updates its buffer seen, and of two nano-batches that run together",
        lambda: trial.pipe.step_microbatches(args, kwargs, targets),
    )
    trial = Trial(Mlp, change=lambda schedule: nano_batched(schedule, 3, lambda stage, _: stage == ranks() - 1))
    args, kwargs, targets = zip(*calls_of(2, 3), strict=True)
    refused(
        ap.PipelineError,
        f"stage {ranks() - 1} runs microbatches as 3 nano-batches, and a microbatch has 2 sequences: run it whole, and",
        lambda: trial.pipe.step_microbatches(args, kwargs, targets),
    )
    trial.both(calls_of(3, 3))


def sharded_parameters_are_gathered_once_for_all_nano_batches():
    if ranks() != 2:
        return
    own = [dist.new_group([one]) for one in range(2)][rank()]
    mesh = dist.init_device_mesh("cpu", (2,))
    schedule = nano_batched(ap.schedule("dualpipev", ranks=1, microbatches=3)).lowered(parameters=True)
    stages = [ap.shard(build(index, Mlp), mesh) for index in range(2)]
    whole = nn.Sequential(*(build(index, Mlp) for index in range(2)))
    pipe = ap.Pipeline(stages, schedule, own, root_mean, plan_group=dist.group.WORLD)
    calls = [calls_of(5, 3, seed) for seed in range(2)]
    pipe.step_microbatches(*zip(*calls[rank()], strict=True))
    for args, _, target in (call for of_rank in calls for call in of_rank):
        (root_mean(whole(*args), target) / 2).backward()
    for index, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            close(parameter.grad.full_tensor(), whole[index].get_parameter(name).grad, f"{index}.{name}", 1e-14)


CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), layers=2, dense_layers=1, expert_groups=1, groups_kept=1)


def entropy(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def visits(whole, tokens):
    """The experts to which each half of the sequences sends tokens."""
    chosen = []
    (router,) = (module for name, module in whole.named_modules() if name.endswith("router"))
    hook = router.register_forward_hook(lambda _, __, route: chosen.append(set(route.experts.flatten().tolist())))
    with torch.no_grad():
        for half in tokens.tensor_split(2):
            whole(half)
    hook.remove()
    return chosen


def experts_that_one_nano_batch_visits_have_the_gradients_of_the_whole():
    """Two ranks share the experts, each a pipeline of its own; every token goes to one expert, and to another one."""
    if ranks() != 2:
        return
    own = [dist.new_group([one]) for one in range(2)][rank()]
    row = "0F0/2 1F0/2 0F1 (1F1;1B0/2)OVERLAP_F_B (1B1;0I0/2)OVERLAP 0W0/2 0B1"
    schedule = ap.Schedule.of(ap.placement.v(1), 2, [row.split()])
    tokens = []
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        some = torch.randint(CONFIG.vocabulary, (6, 6), generator=generator)
        some[:2] = 3 + seed  # one token, all over: the first nano-batch goes to few experts
        tokens.append(some)
    found = {}
    for policy in ("sequential", "list", "dualpipe"):
        whole = DeepSeekV3Stage(CONFIG, embed=True, head=True, dtype=torch.float64)
        mine = [
            DeepSeekV3Stage(CONFIG, [i], dist.group.WORLD, embed=i == 0, head=i == 1, dtype=torch.float64)
            for i in range(2)
        ]
        for module in (whole, *mine):
            for name, buffer in module.named_buffers():
                if name.endswith("selection_bias"):
                    buffer.copy_(torch.tensor([0.0, 100.0] + [0.0] * (CONFIG.experts - 2)))
        pipe = ap.Pipeline(mine, schedule, own, entropy, policy, plan_group=dist.group.WORLD)
        losses = pipe.step(tokens[rank()][:, :-1], target=tokens[rank()][:, 1:])
        found[policy] = [*(losses or []), *(p.grad for stage in mine for p in stage.parameters())]
    first, second = visits(whole, tokens[rank()][:3, :-1])
    assert second - first, "an expert that the second nano-batch alone visits"
    assert all(torch.equal(a, b) for other in found.values() for a, b in zip(found["sequential"], other, strict=True))
    dense: dict[str, torch.Tensor] = {}
    for of_rank in (tokens[rank()], tokens[1 - rank()]):
        for part in of_rank.chunk(2):
            entropy(whole(part[:, :-1]), part[:, 1:]).backward()
        dense = dense or {key: parameter.grad.clone() for key, parameter in whole.named_parameters()}
    for stage in mine:
        for key, parameter in stage.named_parameters():
            is_expert = ".experts." in key
            expected = whole.get_parameter(key).grad.chunk(2)[rank()] if is_expert else dense[key]
            close(parameter.grad, expected, key, 1e-14)


CASES = (
    what_one_rank_cannot_run_is_refused_on_all,
    warm_up_and_cool_down_in_nano_batches_train_as_the_unsplit_model,
    two_microbatches_of_one_stage_run_together,
    a_rank_keeps_as_many_bytes_as_with_whole_microbatches,
    what_costs_choose_trains_as_the_unsplit_model,
    stages_that_are_no_chain_run_nano_batches,
    a_loss_over_the_whole_batch_sees_whole_outputs,
    both_copies_of_a_model_run_nano_batches,
    operations_move_what_nano_batches_have_saved,
    sharded_parameters_are_gathered_once_for_all_nano_batches,
    experts_that_one_nano_batch_visits_have_the_gradients_of_the_whole,
)

if __name__ == "__main__":
    run_cases(CASES)
