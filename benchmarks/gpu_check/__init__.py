"""What needs a real GPU, on one GPU in under four minutes: ``python -m benchmarks.gpu_check [--json PATH]``.

Five groups of checks, each in a process of its own with a time limit, so that a crash or a hang costs one group:

    alone      a stage without a process group: nothing is read on the host, random numbers, checkpoints, autocast
    kernels    our kernels beside PyTorch's operations: results, tiles, a stress with other tokens, times
    captured   a stage compiled by Inductor, and as one CUDA graph, beside one operation after the other
    experts    DeepSeek-V3-style stages over NCCL with one rank: all results bitwise equal to eager, costs, planning
    copies     the overlap job over copies through pinned host memory: times of every policy, launches, a stress

One table says what ran, on which card and versions; the JSON file, rewritten after each check, has the rest.
"""
