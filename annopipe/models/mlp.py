"""A plain multi-layer perceptron, whole or as one pipeline stage: the smallest model that can be cut into stages.

    config = MLPConfig(width=64, layers=8, inputs=16, outputs=10)
    first, last = MLPStage(config, range(4), embed=True), MLPStage(config, range(4, 8), head=True)
    y = last(first(x))

Region paths: "embed", "block0/mlp", "head".
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from annopipe import annotate
from annopipe.models.sizes import check_integers
from annopipe.models.stage import Stage

__all__ = ["MLPBlock", "MLPConfig", "MLPStage"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MLPConfig:
    """The sizes of one model.

    width: values between blocks.  layers: number of blocks.
    inputs, outputs: width of the input before the embedding, and of the output after the head.

    >>> MLPConfig(width=0, layers=1)
    Traceback (most recent call last):
    annopipe.errors.GraphError: MLPConfig: width is 0; it must be an integer of at least 1
    """

    width: int
    layers: int
    inputs: int = 1
    outputs: int = 1

    def __post_init__(self) -> None:
        check_integers(self, 1, ("width", "layers", "inputs", "outputs"))

    @property
    def init_std(self) -> float:
        """He et al. (arXiv 1502.01852): values keep their size from block to block."""
        return math.sqrt(2 / self.width)

    @classmethod
    def tiny(cls) -> "MLPConfig":
        """About 4,500 parameters."""
        return cls(width=32, layers=4, inputs=8, outputs=4)


class MLPBlock(nn.Module):
    """``relu(linear(x))``.

    >>> MLPBlock(8, layer=0)(torch.ones(3, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        width: int,
        layer: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.linear = nn.Linear(width, width, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same shape."""
        with annotate.region(f"block{self.layer}/mlp"):
            out: Tensor = self.linear(x).relu()
            return out


class MLPStage(Stage):
    """Some blocks of a perceptron, with a linear layer before them and one after them if asked for.

    Args:
        config: the sizes of the whole model.
        layers: numbers of the blocks; all of them by default.
        embed: whether the input is [..., inputs]; else it is [..., width].
        head: whether the output is [..., outputs]; else it is [..., width].
        seed: None leaves memory as allocated, for a checkpoint to fill.
        device: "meta" allocates nothing; call ``to_empty`` and ``reset_parameters`` later.
        dtype: of all parameters.

    Raises:
        GraphError: a layer that the config does not have.

    >>> MLPStage(MLPConfig.tiny(), embed=True, head=True)(torch.ones(3, 8)).shape
    torch.Size([3, 4])
    """

    config: MLPConfig

    def __init__(
        self,
        config: MLPConfig,
        layers: Iterable[int] | None = None,
        *,
        embed: bool = False,
        head: bool = False,
        seed: int | None = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        made: dict[str, Any] = {"device": torch.device("meta"), "dtype": dtype}
        super().__init__(
            config,
            layers,
            lambda number: MLPBlock(config.width, number, **made),
            embed=nn.Linear(config.inputs, config.width, **made) if embed else None,
            head=nn.Linear(config.width, config.outputs, **made) if head else None,
            seed=seed,
            device=device,
        )
