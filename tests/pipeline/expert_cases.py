"""Rank program: two pipeline ranks times two expert ranks, beside the whole model in one process on all data."""

import dataclasses
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage
from tests.pipeline.nano_batching import nano_batched
from tests.pipeline.trial import close, refused, run_cases

# The first block is dense: a stage without experts beside stages with them.
CONFIG = dataclasses.replace(DeepSeekV3Config.tiny(), layers=2, dense_layers=1)
SCALE = 0.25


def entropy(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Groups:
    """The process groups of this rank; made once, by all ranks in one order."""

    def __init__(self):
        rank = dist.get_rank()
        pipelines = [dist.new_group(ranks) for ranks in ((0, 2), (1, 3))]
        experts = [dist.new_group(ranks) for ranks in ((0, 1), (2, 3))]
        self.pipeline, self.experts = pipelines[rank % 2], experts[rank // 2]
        self.expert_rank = rank % 2


def stage_of(index, stages, group, config):
    first, last = index == 0, index == stages - 1
    layers = range(config.layers * index // stages, config.layers * (index + 1) // stages)
    return DeepSeekV3Stage(config, layers, group, embed=first, head=last, dtype=torch.float64)


def compare(
    groups,
    name,
    microbatches=4,
    config=CONFIG,
    bias=None,
    policy="auto",
    lengths=((6, 6),),
    recompute=None,
    change=lambda schedule: schedule,
):
    """Steps of both, with `bias` on the choice of experts; each step with the two pipelines' lengths of sequence."""
    schedule = change(ap.schedule(name, ranks=2, microbatches=microbatches))
    stages = schedule.placement.stages
    rank = dist.get_rank(groups.pipeline)
    held = schedule.placement.rank_of
    mine = [stage_of(i, stages, groups.experts, config) if held[i] == rank else None for i in range(stages)]
    whole = DeepSeekV3Stage(config, embed=True, head=True, dtype=torch.float64)
    for module in (whole, *(stage for stage in mine if stage is not None)):
        for key, buffer in module.named_buffers():
            if bias is not None and key.endswith("selection_bias"):
                buffer.copy_(bias)
    options = {"plan_group": groups.experts, "recompute": recompute}
    pipe = ap.Pipeline(mine, schedule, groups.pipeline, entropy, policy, **options)
    generator = torch.Generator().manual_seed(3)
    for both in lengths:
        tokens = [torch.randint(config.vocabulary, (2 * microbatches, n), generator=generator) for n in both]
        expected = []
        for share in tokens:
            for part in share.chunk(microbatches):
                loss = entropy(whole(part[:, :-1]), part[:, 1:])
                (SCALE * loss).backward()
                expected.append(loss.detach())
        own = tokens[groups.expert_rank]
        losses = pipe.step(own[:, :-1], target=own[:, 1:], loss_scale=SCALE)
        if losses is not None:
            first = groups.expert_rank * microbatches
            for found, other in zip(losses, expected[first : first + microbatches], strict=True):
                close(found, other, "loss")
    check_gradients(groups, mine, whole)
    experts = [p for key, p in pipe.named_parameters() if ".experts." in key]
    norm = ap.clip_grad_norm_(pipe, 0.1, sharded=experts, group=groups.experts)
    close(norm, torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.1), "norm")
    check_gradients(groups, mine, whole)
    return pipe


def check_gradients(groups, mine, whole):
    """Of experts as they are; all others are added up over the expert ranks, which are data-parallel ranks for them."""
    reference = dict(whole.named_parameters())
    for stage in mine:
        for key, parameter in stage.named_parameters() if stage is not None else ():
            expected, own = reference[key].grad, parameter.grad
            if ".experts." in key:
                expected = expected.chunk(2)[groups.expert_rank]
            elif not getattr(parameter, "is_reduced", False):
                dist.all_reduce(own, group=groups.experts)
                parameter.is_reduced = True
            close(own, expected, key, 1e-10)


GROUPS: list[Groups] = []


def groups():
    if not GROUPS:
        GROUPS.append(Groups())
    return GROUPS[0]


def experts_are_shared_inside_a_pipeline():
    compare(groups(), "1f1b")


def combined_graphs_hide_communication_and_change_nothing():
    config = dataclasses.replace(CONFIG, layers=4)
    pipe = compare(groups(), "dualpipev", 5, config=config, policy="dualpipe", lengths=((6, 6), (6, 8), (6, 6)))
    assert pipe.plans()


def nano_batches_hide_communication_and_change_nothing():
    config = dataclasses.replace(CONFIG, layers=4)
    for name in ("dualpipev", "zbv"):
        lengths = ((6, 6), (6, 8)) if name == "dualpipev" else ((6, 6),)
        pipe = compare(groups(), name, 5, config=config, policy="list", lengths=lengths, change=nano_batched)
        assert any(len(part) == 3 for parts in pipe.plans() for part in parts)


def experts_are_computed_again_inside_combined_graphs():
    """On the stages that have experts, from what came over the network once."""
    config = dataclasses.replace(CONFIG, layers=4)
    pipe = compare(groups(), "dualpipev", 5, config=config, policy="dualpipe", recompute=["attention", "experts"])
    again = [row for plan in pipe.plans().values() for row in ap.region_table(plan.graph) if row.phase == "recompute"]
    assert {row.region.rpartition("/")[2] for row in again} >= {"attention", "experts"}
    assert {row.kind for row in again} == {"compute"}


def a_rank_may_receive_no_token():
    """Every token goes to the experts of the first rank."""
    bias = torch.zeros(CONFIG.experts)
    bias[: CONFIG.experts // 2] = 100.0
    compare(groups(), "zb-h1", 3, bias=bias, config=dataclasses.replace(CONFIG, expert_groups=1, groups_kept=1))


def pipelines_that_share_experts_have_to_call_alike():
    config = dataclasses.replace(CONFIG, layers=2, dense_layers=0)
    beside = groups().expert_rank
    tokens = torch.ones(8, 6, dtype=torch.long)

    def make(name, **options):
        schedule = ap.schedule(name, ranks=2, microbatches=4)
        rank = dist.get_rank(groups().pipeline)
        mine = [stage_of(i, 2, groups().experts, config) if i == rank else None for i in range(2)]
        return ap.Pipeline(mine, schedule, groups().pipeline, entropy, **options)

    for options in ({}, {"plan_group": groups().experts}):
        pipe = make(("1f1b", "gpipe")[beside], **options)
        step = partial(pipe.step, tokens, target=tokens)
        refused(ap.PipelineError, "have different arguments, the schedule: ", step)
    pipe = make("1f1b", plan_group=groups().experts)
    short = tokens[: 8 - beside]
    refused(ap.PipelineError, "cannot be cut into 4 equal microbatches", lambda: pipe.step(short, target=short))
    call = pipe.eval if beside else lambda x: pipe.step(x, target=x)
    refused(ap.PipelineError, "have different arguments, call: step and eval", lambda: call(tokens))
    pipe.step(tokens, target=tokens)


CASES = (
    pipelines_that_share_experts_have_to_call_alike,
    experts_are_shared_inside_a_pipeline,
    combined_graphs_hide_communication_and_change_nothing,
    nano_batches_hide_communication_and_change_nothing,
    experts_are_computed_again_inside_combined_graphs,
    a_rank_may_receive_no_token,
)


if __name__ == "__main__":
    run_cases(CASES)
