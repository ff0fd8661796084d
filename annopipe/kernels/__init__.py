"""Operations on rows that are grouped by expert, as operators that trace, split and differentiate (docs/kernels.md).

On NVIDIA GPUs they are Triton kernels, elsewhere PyTorch's operations. Importing this imports no Triton.
"""

from annopipe.kernels.grouped_mm import grouped_mm, grouped_mm_weight_grad
from annopipe.kernels.implementation import has_kernels
from annopipe.kernels.permutation import permute, row_products, unpermute

__all__ = ["grouped_mm", "grouped_mm_weight_grad", "has_kernels", "permute", "row_products", "unpermute"]
