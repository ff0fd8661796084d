"""One stage on its rank: its graphs, what crosses its borders, and what its microbatches leave there."""
