"""The page of `annopipe bench moe`: pictures and one web page that needs nothing else, from its results; no torch.

`write_page(results, folder)` is the door; needs matplotlib (extra `plots`).
"""

from benchmarks.moe_page.writing import write_page, write_page_of

__all__ = ["write_page", "write_page_of"]
