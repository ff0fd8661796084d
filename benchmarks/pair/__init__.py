"""One overlapped pair on every rank: the forward of one microbatch and the backward of another, eager, planned and paced."""
