"""Step 1: the whole model in one process. Every later step has to come to the same gradients.

    python -m examples.from_scratch.step1_monolith

The batch is processed in microbatches already: gradients add up over them in ``param.grad``. All of the model and the
activations of a microbatch fit in one process here; the course is about what to do when they do not.
"""

from examples.from_scratch import course


def train(profile: course.Profile) -> course.Result:
    """One step: forward and backward of every microbatch, one after the other."""
    model, total = course.whole_model(), 0.0
    forward_s = course.BLOCKS * course.BLOCK_S + course.HEAD_S
    for number, (rows, classes) in enumerate(course.microbatches()):
        with profile.action("F", number, forward_s):
            loss = course.loss_of(model(rows), classes)
        with profile.action("B", number, 2 * forward_s):
            loss.backward()
        total += loss.item()
    return course.Result(
        total, {name: given.grad for name, given in model.named_parameters() if given.grad is not None}
    )


if __name__ == "__main__":
    course.main("one process", train)
