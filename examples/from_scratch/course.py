"""What every step of the course shares: the model, its data, a clock, and the report at the end.

Four processes on two cores cannot compute at the same time, so the time of computation is paced: an action really
computes, and then waits until its known duration is over. Messages take a known time, too. What is measured is what the
order of the actions makes of these durations, and that does not depend on how many cores there are.
"""

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, BLOCKS, CLASSES = 32, 8, 16
MICROBATCHES, ROWS = 8, 4  # a step is 8 microbatches of 4 rows
BLOCK_S = float(os.environ.get("BLOCK_MS", "10")) / 1e3  # the forward of a block; its backward takes twice as long
HEAD_S = float(os.environ.get("HEAD_MS", "10")) / 1e3  # the same of the head
MESSAGE_S = float(os.environ.get("MESSAGE_MS", "4")) / 1e3  # from the beginning of sending until it has arrived
ROUNDS = 3


def whole_model() -> nn.Sequential:
    """Eight blocks and a head; the same numbers on every rank."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES)).double()


def batch() -> tuple[Tensor, Tensor]:
    """Rows [microbatches * rows, width] and the class of each."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return rows, torch.randint(CLASSES, (len(rows),), generator=generator)


def microbatches() -> list[tuple[Tensor, Tensor]]:
    """The batch in equal parts."""
    rows, classes = batch()
    return list(zip(rows.chunk(MICROBATCHES), classes.chunk(MICROBATCHES), strict=True))


def loss_of(output: Tensor, classes: Tensor) -> Tensor:
    """A microbatch's share of the mean over the batch, so that the losses of all microbatches add up to it."""
    return nn.functional.cross_entropy(output, classes) / MICROBATCHES


def wait_until(moment: float) -> None:
    """Sleep until the clock of all processes (``time.perf_counter``) shows a moment."""
    if (rest := moment - time.perf_counter()) > 0:
        time.sleep(rest)


@dataclasses.dataclass
class Profile:
    """When this rank computed what, and of how many forwards it kept activations.

    Attributes:
        spans: (F or B, microbatch, start, end) in seconds.
        kept: forwards whose activations are kept now.
        peak: most of them at any time.
        began, ended: of the step.
    """

    spans: list[tuple[str, int, float, float]] = dataclasses.field(default_factory=list)
    kept: int = 0
    peak: int = 0
    began: float = dataclasses.field(default_factory=time.perf_counter)
    ended: float = 0.0

    @contextlib.contextmanager
    def action(self, kind: str, microbatch: int, seconds: float) -> Iterator[None]:
        """What runs inside is one action, and takes that long."""
        self.kept += 1 if kind == "F" else 0
        self.peak = max(self.peak, self.kept)
        start = time.perf_counter()
        yield
        wait_until(start + seconds)
        self.spans.append((kind, microbatch, start, time.perf_counter()))
        self.kept -= 1 if kind == "B" else 0

    @property
    def computing(self) -> float:
        """Seconds."""
        return sum(end - start for _, _, start, end in self.spans)


@dataclasses.dataclass
class Result:
    """What a step of training came to on one rank.

    Attributes:
        loss: of the batch; None on ranks without the head.
        gradients: of this rank's parameters, by their names in the whole model.
    """

    loss: float | None
    gradients: Mapping[str, Tensor]


Train = Callable[[Profile], Result]


def main(name: str, train: Train, before: Train | None = None) -> None:
    """Run a step, say what it took, and compare it with the step before; starts and ends the process group."""
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    result, profiles = measured(train)
    if before is not None:
        compare(result, before(Profile()))
    if rank() == 0:
        print(report(name, profiles))
        print("equal to the step before" if before is not None else "nothing to compare with yet")
    if distributed:
        dist.barrier()
        dist.destroy_process_group()


def measured(train: Train) -> tuple[Result, list[Profile]]:
    """The step of median length out of a few: this rank's result, and the profiles of all ranks."""
    found = []
    for _ in range(ROUNDS):
        if dist.is_initialized():
            dist.barrier()
        profile = Profile()
        result = train(profile)
        profile.ended = time.perf_counter()
        everyone = [profile]
        if dist.is_initialized():
            everyone = [profile] * dist.get_world_size()
            dist.all_gather_object(everyone, profile)
        found.append((length(everyone), result, everyone))
    middle = statistics.median_low([seconds for seconds, _, _ in found])
    return next((result, everyone) for seconds, result, everyone in found if seconds == middle)


def length(profiles: list[Profile]) -> float:
    """Seconds from the first action of any rank to the end of the last."""
    spans = [span for profile in profiles for span in profile.spans]
    return max(end for *_, end in spans) - min(start for _, _, start, _ in spans)


def compare(found: Result, expected: Result) -> None:
    """Loss and gradients of this rank have to be those of another way to the same numbers.

    Raises AssertionError with the name of what differs.
    """
    if found.loss is not None and expected.loss is not None:
        torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-12)
    for name, gradient in found.gradients.items():
        message = f"the gradient of {name} differs from that of the step before"
        torch.testing.assert_close(gradient, expected.gradients[name], rtol=0, atol=1e-12, msg=message)


def report(name: str, profiles: list[Profile]) -> str:
    """A picture of the step, and for every rank the share of computing, the idle share, and what it kept."""
    seconds, ranks = length(profiles), len(profiles)
    lines = [f"{name}: {1e3 * seconds:.0f} ms for a step, paced", *picture(profiles)]
    lines.append(
        "digits: the forward of that microbatch; letters: the backward of microbatch 0 (a), 1 (b), ...; . idle"
    )
    for number, profile in enumerate(profiles):
        share = profile.computing / seconds
        lines.append(
            f"rank {number}: computes {share:.0%}, idle {1 - share:.0%}, keeps the activations of {profile.peak} "
            f"forward{'' if profile.peak == 1 else 's'}"
        )
    if ranks > 1:
        idle = 1 - sum(profile.computing for profile in profiles) / (ranks * seconds)
        formula = 1 - MICROBATCHES / (MICROBATCHES + ranks - 1)
        lines.append(f"bubble {idle:.0%}; GPipe and 1F1B with equal stages and free messages: {formula:.0%}")
    return "\n".join(lines)


def picture(profiles: list[Profile], width: int = 100) -> list[str]:
    """One line for each rank: digits are forwards, letters backwards, of the microbatch 0 or a, 1 or b, and so on."""
    seconds, first = length(profiles), min(start for each in profiles for _, _, start, _ in each.spans)
    lines = []
    for number, profile in enumerate(profiles):
        cells = ["."] * width
        for kind, microbatch, start, end in profile.spans:
            left, right = (round((moment - first) / seconds * width) for moment in (start, end))
            mark = str(microbatch % 10) if kind == "F" else chr(ord("a") + microbatch % 26)
            cells[left:right] = [mark] * (right - left)
        lines.append(f"rank {number} |{''.join(cells)}|")
    return lines


def rank() -> int:
    """Of this process; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0
