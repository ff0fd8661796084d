"""Nano-batched actions on one rank: beside the whole microbatch, beside themselves in sequence, and what is refused."""

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import annopipe as ap
from annopipe.pipeline import preparing
from annopipe.pipeline.calls.microbatch_calls import Call
from annopipe.pipeline.calls.nano_batch_calls import batch_length, nano_batch_lengths
from annopipe.pipeline.stages.nano_checks import batch_dim

WIDTH, TOKENS, MICROBATCHES = 6, 3, 2
# F and B of the first stage whole, in two, in three; of the second one alone and in combinations, whole and split.
ROWS = {
    "everything in two": "0F0/2 1F0/2 0F1/2 (1F1/2;1B0/2)OVERLAP_F_B 0B0/2 1B1/2 0B1/2",
    "a third lane": "0F0/3 1F0/2 0F1 (1F1;1B0/2)OVERLAP_F_B 0B0/3 1B1 0B1",
    "split backwards": "0F0/2 1F0/2 (0F1;1I0/2)OVERLAP_F_B (1F1;1W0/2)OVERLAP 0I0/2 0W0/2 1B1 0B1",
}


class Block(nn.Module):
    def __init__(self, index=0):
        super().__init__()
        torch.manual_seed(index)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        with ap.region("mlp"):
            return x + self.down(torch.tanh(self.up(x)))


def blocks(dtype=torch.float64):
    return [Block(0).to(dtype), Block(1).to(dtype)]


def mean_over_tokens(output, target):
    """Not a sum over sequences: a mean over those tokens that count."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def batch(length, dtype=torch.float64):
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(MICROBATCHES * length, TOKENS, WIDTH, generator=generator, dtype=dtype)
    target = torch.randint(WIDTH, x.shape[:2], generator=generator)
    target[:, 1] = target[1] = -100  # a sequence with no token that counts
    return x, target


def piped(row, stages, loss_fn=mean_over_tokens, **options):
    schedule = ap.Schedule.of(ap.placement.v(1), MICROBATCHES, [row.split()])
    return ap.Pipeline(stages, schedule, loss_fn=loss_fn, keep_outputs=True, **options)


def trained(pipe, stages, x, target):
    """Losses, outputs, gradients of the input and of the parameters."""
    x = x.clone().requires_grad_()
    losses = pipe.step(x, target=target, loss_scale=0.5)
    return [*losses, *pipe.outputs, x.grad, *(p.grad for stage in stages for p in stage.parameters())]


def unsplit(stages, x, target, loss_fn=mean_over_tokens):
    x = x.clone().requires_grad_()
    losses, outputs = [], []
    for part, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        outputs.append(nn.Sequential(*stages)(part))
        losses.append(loss_fn(outputs[-1], wanted))
    (0.5 * sum(losses)).backward()
    found = [*losses, *outputs, x.grad, *(p.grad for stage in stages for p in stage.parameters())]
    return [value.detach() for value in found]


def close(found, expected, tolerance):
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        assert (own.shape, own.dtype) == (other.shape, other.dtype)
        assert float((own - other).abs().max()) <= tolerance * max(1e-3, float(other.abs().max()))


@pytest.mark.parametrize(("row", "length"), [("everything in two", 7), ("a third lane", 5), ("split backwards", 4)])
def test_nano_batches_compute_what_the_whole_microbatch_does(row, length):
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        x, target = batch(length, dtype)
        stages, whole = blocks(dtype), blocks(dtype)
        close(trained(piped(ROWS[row], stages), stages, x, target), unsplit(whole, x, target), tolerance)


def test_every_policy_has_the_bits_of_nano_batches_in_sequence():
    row = "0F0/3 1F0/2 0F1/2 (1F1/2;1B0/2)OVERLAP_F_B 0B0/3 1B1/2 0B1/2"
    x, target = batch(5)
    found = []
    for policy in ("sequential", "alternate", "list"):
        stages = blocks()
        found.append(trained(piped(row, stages, policy=policy), stages, x, target))
    assert all(map(torch.equal, found[0], other) for other in found[1:])


def test_fixed_sums_add_nano_batches_in_the_order_of_microbatches():
    x, target = batch(5)
    found = []
    for row in (
        "0F0/2 1F0/2 1B0/2 0B0/2 0F1/2 1F1/2 1B1/2 0B1/2",
        "0F1/2 1F1/2 0F0/2 1F0/2 1B1/2 1B0/2 0I1/2 0I0/2 0W1/2 0W0/2",
    ):
        stages = blocks()
        found.append(trained(piped(row, stages, fixed_sums=True), stages, x, target))
    assert all(map(torch.equal, *found))


def test_random_numbers_are_those_of_nano_batches_in_sequence():
    x, target = batch(5)
    found = []
    for policy, recompute in (("sequential", None), ("alternate", None), ("alternate", "all")):
        stages = [nn.Sequential(block, nn.Dropout(0.5)) for block in blocks()]
        torch.manual_seed(0)
        row = "0F0/2 1F0/3 0F1/2 (1F1/2;1B0/3)OVERLAP_F_B 0B0/2 1B1/2 0B1/2"
        found.append(trained(piped(row, stages, policy=policy, recompute=recompute), stages, x, target))
    assert all(map(torch.equal, found[0], other) for other in found[1:])


def test_a_frozen_stage_runs_nano_batches_and_has_no_gradients():
    x, target = batch(5)
    stages, whole = blocks(), blocks()
    for first in (stages[0], whole[0]):
        first.requires_grad_(requires_grad=False)
    losses = piped(ROWS["split backwards"], stages).step(x, target=target)
    for part, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        mean_over_tokens(nn.Sequential(*whole)(part), wanted).backward()
    assert len(losses) == MICROBATCHES
    assert all(p.grad is None for p in stages[0].parameters())
    close([p.grad for p in stages[1].parameters()], [p.grad for p in whole[1].parameters()], 1e-14)


def test_new_lengths_are_prepared_anew_and_evaluation_runs_whole_microbatches():
    stages, whole = blocks(), blocks()
    pipe = piped(ROWS["everything in two"], stages)
    for length in (4, 5, 4):
        for module in (*stages, *whole):
            module.zero_grad()
        x, target = batch(length)
        close(trained(pipe, stages, x, target), unsplit(whole, x, target), 1e-14)
        for output, part in zip(pipe.eval(x), x.chunk(MICROBATCHES), strict=True):
            assert torch.equal(output, nn.Sequential(*whole)(part))


class Sends(nn.Module):
    """Hands on the batch in its second dimension, what is the same for all sequences, and constants."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.scale = nn.Linear(WIDTH, WIDTH, bias=False), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, weights):
        found = self.linear(x).transpose(0, 1) * weights[:, None]
        return {"x": found, "scale": self.scale * 2, "weights": weights, "heads": 2, "none": None}


class Takes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.linear, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, given, shift):
        found = self.linear(torch.tanh(given["x"] * given["scale"] * given["weights"][:, None]) + shift)
        return {"logits": found.transpose(0, 1), "unused": self.other(found), "count": given["x"].shape[1]}


def of_logits(output, target):
    return mean_over_tokens(output["logits"], target) * output["count"]


def test_values_with_another_batch_dimension_or_none_cross_as_those_of_the_whole():
    x, target = batch(5)
    results = []
    for row in ("0F0/2 1F0/3 0F1 1F1/2 1B0/3 0B0/2 1B1/2 0B1", "0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1"):
        stages: list[nn.Module] = [Sends().double(), Takes().double()]
        pipe = piped(row, stages, of_logits, batch_dims={"weights": None, "shift": 1})
        own = [x.clone(), torch.rand(TOKENS, 1, dtype=x.dtype, generator=torch.Generator().manual_seed(1)), x[:1] * 0]
        own[2] = x.transpose(0, 1).contiguous() / 3
        given = [value.requires_grad_() for value in own]
        losses = pipe.step(given[0], weights=given[1], shift=given[2], target=target)
        assert stages[1].get_parameter("other.weight").grad is None
        grads = [p.grad for stage in stages for p in stage.parameters() if p.grad is not None]
        results.append([*losses, *(out["logits"] for out in pipe.outputs), *(g.grad for g in given), *grads])
        assert [out["count"] for out in pipe.outputs] == [5, 5]
    close(results[0], results[1], 1e-14)


@pytest.mark.parametrize("trained", [True, False])
def test_a_target_that_requires_grad_gets_its_gradient(trained):
    x, _ = batch(5)
    rows = ("0F0/2 0F1/3 0B0/2 0B1/3", "0F0/2 0F1/2 (0B0/2;0B1/2)OVERLAP", "0F0 (0F1;0B0)OVERLAP_F_B 0B1")
    grads = []
    for row in rows:
        schedule = ap.Schedule.of(ap.placement.linear(1), MICROBATCHES, [row.split()])
        block = Block().double().requires_grad_(trained)
        target = torch.ones_like(x).requires_grad_()
        ap.Pipeline([block], schedule, loss_fn=lambda o, t: ((o - t) ** 2).mean().sqrt()).step(x, target=target)
        grads.append(target.grad)
    close([grads[0], grads[1]], [grads[2]] * 2, 1e-14)


class Balanced(Block):
    """With a loss that is not linear in the batch."""

    def forward(self, x):
        found = super().forward(x)
        ap.auxiliary_loss(found.mean() ** 2)
        return found


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_auxiliary_losses_of_nano_batches_are_weighed_as_asked(how):
    x, target = batch(5)
    stages, (first, second) = ([Balanced(index).double() for index in range(2)] for _ in range(2))
    pipe = piped(ROWS["everything in two"], stages, nano_auxiliary=how)
    found = trained(pipe, stages, x, target)
    expected: list[torch.Tensor] = []
    for own, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        outputs, terms = [], []
        for part in own.tensor_split(2):
            with ap.auxiliary_losses() as added:
                outputs.append(second(first(part)))
            share = len(part) / len(own) if how == "mean" else 1
            terms += [term * share for term in added]
        expected.append(torch.stack(terms[::2]).sum().detach())
        (0.5 * (mean_over_tokens(torch.cat(outputs), wanted) + sum(terms))).backward()
    close(found[-8:], [p.grad for stage in (first, second) for p in stage.parameters()], 1e-14)
    close(pipe.auxiliary_losses[0], expected, 1e-14)


class Counts(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.get_buffer("seen").add_(1)
        return super().forward(x)


class Normed(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(TOKENS, track_running_stats=False)

    def forward(self, x):
        return super().forward(self.norm(x))


class Ends(Block):
    """Its output is what `ending` makes of it."""

    def __init__(self, ending):
        super().__init__()
        self.ending = ending

    def forward(self, x):
        return self.ending(super().forward(x))


class Divides(Block):
    def forward(self, x, count=1):
        return super().forward(x) / count


class Sized(Block):
    def forward(self, x):
        return super().forward(x) if len(x) > 3 else torch.tanh(self.up(x))[..., :WIDTH]


def total(output, _):
    return sum(value.sum() for value in (output if isinstance(output, tuple) else (output,)))


REFUSED = {
    "a buffer that is updated": (
        Counts,
        4,
        "stage 0 updates its buffer seen, and of two nano-batches that",
    ),
    "an auxiliary loss": (Balanced, 4, "stage 0 calls ap.auxiliary_loss, and such a loss need not be a sum over seq"),
    "a batch norm": (Normed, 4, "stage 0 has a batch norm"),
    "a mean over the batch": (
        lambda: Ends(lambda x: (x, x.mean())),
        *(4, "stage 0: output.1 of shape [] is computed from the batch, or at random, and no dimension of it is"),
    ),
    "a random value": (
        lambda: Ends(lambda x: (x, torch.rand_like(x[0]))),
        *(4, "stage 0: output.1 of shape [3, 6] is computed from the batch, or at random"),
    ),
    "a batch beside others in one dimension": (
        lambda: Ends(lambda x: x.flatten(0, 1)),
        *(
            5,
            "stage 0: output is of shape [15, 6] for a microbatch, [9, 6] and [6, 6] for its parts: with nano",
        ),
    ),
    "a number of sequences": (
        lambda: Ends(lambda x: (x, torch.full((), len(x)))),
        *(4, "stage 0: output.1 of shape [] is computed from how many sequences there are"),
    ),
    "numbers of sequences": (
        lambda: Ends(lambda x: (x, torch.arange(len(x)))),
        *(5, "stage 0: output.1 of shape [5] is computed from how many sequences there are"),
    ),
    "a running number of sequences": (
        lambda: Ends(lambda x: (x, torch.ones_like(x[:, 0, 0]).cumsum(0))),
        *(5, "stage 0: output.1 of shape [5] is computed from how many sequences there are"),
    ),
    "two dimensions that are the batch": (
        lambda: Ends(lambda x: torch.einsum("btw,ctw->bc", x, x)),
        *(4, "stage 0: output is of shape [4, 4] for a microbatch, [2, 2] and [2, 2] for its parts"),
    ),
    "another graph for a part": (
        Sized,
        4,
        "stage 0 has other parameters for a part of a microbatch than for",
    ),
    "one sequence": (Block, 1, "a microbatch has one sequence: run it whole, and split the tokens inside the model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nano_batches_would_change_is_refused(name):
    make, length, match = REFUSED[name]
    schedule = ap.Schedule.of(ap.placement.linear(1), MICROBATCHES, [["0F0/2", "0B0/2", "0F1", "0B1"]])
    pipe = ap.Pipeline([make().double()], schedule, loss_fn=total)
    x, _ = batch(length)
    with pytest.raises(ap.PipelineError, match=re.escape(match)):
        pipe.step(x, target=x)
    assert len(pipe.eval(x)) == MICROBATCHES


def test_a_number_of_sequences_that_a_stage_hands_on_is_refused_where_the_next_one_runs_nano_batches():
    x, target = batch(5)
    for row, refused in (("0F0/2 1F0 1B0 0B0/2", False), ("0F0 1F0/2 1B0/2 0B0", True)):
        stages, whole = ([Ends(lambda x: (x, len(x))).double(), Divides(1).double()] for _ in range(2))
        pipe = piped(f"{row} 0F1 1F1 1B1 0B1", stages)
        if refused:
            with pytest.raises(
                ap.PipelineError, match=r"stage 1 is given count=5 with a microbatch, and 3 with a part"
            ):
                pipe.step(x, target=target)
            continue
        pipe.step(x, target=target)
        for part, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
            mean_over_tokens(whole[1](*whole[0](part)), wanted).backward()
        own, expected = ([p.grad for stage in each for p in stage.parameters()] for each in (stages, whole))
        close(own, expected, 1e-14)


def test_values_made_anew_or_of_parameters_alone_may_have_no_batch():
    def ending(x):
        positions = torch.arange(TOKENS).expand(len(x), TOKENS)
        return x, torch.zeros_like(x[0]), x.new_ones(len(x), 1) * positions, positions > 1

    own, whole = ([Ends(ending)] for _ in range(2))
    rows = (["0F0/2", "0B0/2", "0F1/2", "0B1/2"], ["0F0", "0B0", "0F1", "0B1"])
    x, _ = batch(4)
    for (stage,), row in zip((own, whole), rows, strict=True):
        pipe = ap.Pipeline([stage.double()], ap.Schedule.of(ap.placement.linear(1), 2, [row]), loss_fn=total)
        pipe.step(x, target=x)
    close([p.grad for p in own[0].parameters()], [p.grad for p in whole[0].parameters()], 1e-14)


def test_arguments_that_do_not_agree_are_refused():
    with pytest.raises(ap.PipelineError, match=r"y has shape \(3,\) for a microbatch, and x has a batch of 4, so that"):
        batch_length(Call((), {"x": torch.ones(4), "y": torch.ones(3)}, None), None, {})
    with pytest.raises(ap.PipelineError, match=r"batch_dims=\{'y': None\} of Pipeline gives it to each whole"):
        batch_length(Call((), {"y": torch.ones(())}, None), None, {})
    assert batch_length(Call((), {"n": 3}, None), None, {}) is None


def test_a_step_without_a_batch_is_refused():
    schedule = ap.Schedule.of(ap.placement.linear(1), MICROBATCHES, [["0F0/2", "0B0/2", "0F1", "0B1"]])
    pipe = ap.Pipeline([Block()], schedule, loss_fn=total, batch_dims={"x": None, "target": None})
    with pytest.raises(ap.PipelineError, match="called with no tensor that could be cut .* take a schedule without"):
        pipe.step(torch.ones(2, TOKENS, WIDTH), target=torch.ones(1))


def test_a_size_that_depends_on_data_is_refused():
    with pytest.raises(ap.PipelineError, match="y has a size that depends on data, .*: run this stage on whole micro"):
        batch_dim("y", ("u0", 2), [("u1", 2), ("u2", 2)], (2, 1))


def test_how_auxiliary_losses_count_is_one_of_two_ways():
    with pytest.raises(ap.PipelineError, match='nano_auxiliary=\'max\': give "mean", "sum" or None'):
        piped(ROWS["everything in two"], blocks(), nano_auxiliary="max")


def test_an_error_names_the_nano_batch():
    schedule = ap.Schedule.of(ap.placement.linear(1), 1, [["0F0/2", "0B0/2"]])
    pipe = ap.Pipeline([nn.Embedding(4, 2)], schedule, loss_fn=total, policy="sequential")
    with pytest.raises(
        ap.PipelineError, match=r"in 0F0/2 \(stage 0, microbatch 0 in 2 nano-batches\), region \w+, lane F1, at "
    ):
        pipe.step(torch.tensor([0, 1, 9]), target=torch.ones(1))


def test_nano_batches_keep_what_the_whole_microbatch_keeps():
    sizes = []
    for row in ("0F0/2 0LOOK0 1F0/2 1LOOK0 1B0/2 0B0/2", "0F0 0LOOK0 1F0 1LOOK0 1B0 0B0"):
        stages, found = blocks(), list[int]()
        schedule = ap.Schedule.of(ap.placement.v(1), 1, [row.split()])
        pipe = ap.Pipeline(stages, schedule, loss_fn=mean_over_tokens)
        own = {p.untyped_storage().data_ptr() for stage in stages for p in stage.parameters()}

        def look(stage, microbatch, pipe=pipe, found=found, own=own):
            kept: dict[int, int] = {}

            def note(tensor):
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            pipe.map_saved(stage, microbatch, note)
            found.append(sum(size for at, size in kept.items() if at not in own))

        pipe.register("LOOK", look)
        x, target = batch(3)
        pipe.step(x, target=target)
        sizes.append(found)
    assert sizes[0] == sizes[1]


def test_a_stage_is_traced_once_for_each_length_of_its_nano_batches(monkeypatch):
    traced: list[tuple[int, int]] = []
    original = preparing.trace

    def noted(module, args, *rest, **options):
        traced.append((stages.index(module), len(args[0])))
        return original(module, args, *rest, **options)

    monkeypatch.setattr(preparing, "trace", noted)
    for row, length, expected in (
        ("0F0/2 1F0 0F1 1F1 1B0 0B0/2 1B1 0B1", 7, [(0, 7), (1, 7), (0, 4), (0, 3)]),
        ("0F0 1F0/2 0F1 1F1/3 1B0/2 0B0 1B1/3 0B1", 6, [(0, 6), (1, 6), (0, 3), (1, 3), (0, 2), (1, 2)]),
    ):
        traced.clear()
        stages = blocks()
        x, target = batch(length)
        piped(row, stages).prepare(x, target=target)
        assert traced == expected


@given(st.integers(1, 40), st.integers(1, 9))
def test_nano_batches_are_as_long_as_torch_cuts_them(length, parts):
    assert list(nano_batch_lengths(length, parts)) == [len(p) for p in torch.arange(length).tensor_split(parts)]
    if length >= parts:
        assert list(nano_batch_lengths(length, parts)) == [len(p) for p in ap.nano_batches(torch.arange(length), parts)]
