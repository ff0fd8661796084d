"""Our kernels: what they take of a multiprocessor, compiled without a GPU, and how fast they are on one."""
