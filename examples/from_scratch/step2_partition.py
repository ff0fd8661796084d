"""Step 2: the model cut into stages, still in one process.

    python -m examples.from_scratch.step2_partition

Autograd stops at the edge of a stage: a stage's input is a new leaf, and the gradient of its output comes from the
stage behind it. So a stage has a forward, which keeps its input and its output, and a backward, which is given the
gradient of the output, adds to the gradients of the parameters, and hands on the gradient of the input.
"""

from torch import Tensor, nn

from examples.from_scratch import course

STAGES = 4


class Stage:
    """Some neighbouring layers of the model; the last stage has the head, and the loss."""

    def __init__(self, number: int, stages: int) -> None:
        if stages > course.BLOCKS:
            raise ValueError(f"{stages} stages of {course.BLOCKS} blocks: start at most {course.BLOCKS} ranks")
        model = course.whole_model()
        bounds = [course.BLOCKS * stage // stages for stage in range(stages + 1)]
        bounds[-1] += 1  # the head
        self.first, self.last = number == 0, number == stages - 1
        self.names = range(bounds[number], bounds[number + 1])
        self.layers = nn.Sequential(*[model[layer] for layer in self.names])
        self.forward_s = course.BLOCK_S * (len(self.names) - self.last) + course.HEAD_S * self.last
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.loss = 0.0

    def forward(self, profile: course.Profile, microbatch: int, given: Tensor) -> Tensor:
        """The output of one microbatch; of the last stage the loss."""
        with profile.action("F", microbatch, self.forward_s):
            entry = given.detach().requires_grad_(not self.first)
            output = self.layers(entry)
            if self.last:
                output = course.loss_of(output, course.microbatches()[microbatch][1])
                self.loss += output.item()
            self.kept[microbatch] = entry, output
        return output.detach()

    def backward(self, profile: course.Profile, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """The gradient of the input, from the gradient of the output; the last stage needs none, the first has none."""
        with profile.action("B", microbatch, 2 * self.forward_s):
            entry, output = self.kept.pop(microbatch)
            output.backward(gradient)
        return entry.grad

    def result(self) -> course.Result:
        """What the step came to here."""
        gradients = {
            f"{self.names[int(place)]}.{rest}": given.grad
            for (place, rest), given in ((name.split(".", 1), given) for name, given in self.layers.named_parameters())
            if given.grad is not None
        }
        return course.Result(self.loss if self.last else None, gradients)


def train(profile: course.Profile) -> course.Result:
    """One step: microbatch by microbatch through all stages, and back."""
    stages = [Stage(number, STAGES) for number in range(STAGES)]
    for microbatch, (rows, _) in enumerate(course.microbatches()):
        values = rows
        for stage in stages:
            values = stage.forward(profile, microbatch, values)
        gradient = None
        for stage in reversed(stages):
            gradient = stage.backward(profile, microbatch, gradient)
    results = [stage.result() for stage in stages]
    return course.Result(results[-1].loss, {name: g for each in results for name, g in each.gradients.items()})


if __name__ == "__main__":
    from examples.from_scratch import step1_monolith

    course.main("four stages, one process", train, before=step1_monolith.train)
