"""One overlapped pair per rank, the forward of one microbatch with the backward of another: eager, planned, paced."""
