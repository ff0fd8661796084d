"""What compiling graphs gains and takes, and what running a graph costs beside its computation."""
