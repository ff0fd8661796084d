"""Some blocks of a model as one pipeline stage, with what comes before and after them; and the MoE models' stages.

Parameters have the names and first values that they have in the whole model (``annopipe/models/initial.py``), so
stages and expert-parallel ranks built with one seed are slices of one model.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from annopipe import annotate
from annopipe.errors import GraphError
from annopipe.models.exchange import Group
from annopipe.models.initial import initialise, materialise
from annopipe.models.moe import MoE
from annopipe.models.moe_config import MoEConfig
from annopipe.models.nano_batching import split_forward
from annopipe.models.sizes import StageSizes

__all__ = ["MoEStage", "Stage"]


class Stage(nn.Module):
    """Embedding, blocks, normalisation and head; each is optional, and each runs in its region.

    Region paths: "embed", those of the blocks ("block0/attention", ...), "head".

    Args:
        config: the sizes of the whole model.
        layers: numbers of the blocks; None: all of them.
        block: builds block number n, on the meta device.
        embed, norm, head: the other parts, on the meta device; ``norm`` belongs to the head.
        seed: None leaves memory as allocated, for a checkpoint to fill.
        device: "meta" allocates nothing; call ``to_empty`` and ``reset_parameters`` later.
        tied: name to name: a parameter that is another one where the stage has both, and elsewhere begins as it; kept
            as an attribute for whoever adds the gradients of two stages.

    Raises:
        GraphError: a layer that the config does not have, or has twice.
    """

    def __init__(
        self,
        config: StageSizes,
        layers: Iterable[int] | None,
        block: Callable[[int], nn.Module],
        *,
        embed: nn.Module | None = None,
        norm: nn.Module | None = None,
        head: nn.Module | None = None,
        seed: int | None = 0,
        device: torch.device | str = "cpu",
        tied: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.config = config
        self.embed = embed
        self.blocks = nn.ModuleDict({str(n): block(n) for n in self._numbers(layers)})
        self.norm = norm
        self.head = head
        self.tied = dict(tied)
        self._tie()
        if torch.device(device).type != "meta":
            materialise(self, device)
            if seed is not None:
                self.reset_parameters(seed)

    def reset_parameters(self, seed: int = 0) -> None:
        """Give every parameter and buffer its first value again, and tie what ``to_empty`` has untied."""
        self._tie()
        initialise(self, self.config.init_std, seed, self.tied)

    def forward(self, x: Tensor) -> Tensor:
        """Through the parts that this stage has; see the class of the model for shapes."""
        if self.embed is not None:
            with annotate.region("embed"):
                x = self.embed(x)
        x = self._through_blocks(x)
        if self.head is not None:
            with annotate.region("head"):
                x = self.head(x if self.norm is None else self.norm(x))
        return x

    def _through_blocks(self, x: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x

    def _tie(self) -> None:
        present = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        for name, source in self.tied.items():
            if {name, source} <= present:
                module, _, attribute = name.rpartition(".")
                setattr(self.get_submodule(module), attribute, self.get_parameter(source))

    def _numbers(self, layers: Iterable[int] | None) -> list[int]:
        name, count = type(self).__name__, self.config.layers
        numbers = list(range(count) if layers is None else layers)
        if len(set(numbers)) != len(numbers):
            raise GraphError(f"{name}: layers {numbers} name a block twice: give each one once")
        for number in numbers:
            if not 0 <= number < count:
                raise GraphError(f"{name}: layer {number} is not one of the model's {count} (0 first)")
        return numbers


class MoEStage(Stage):
    """Some blocks of a mixture-of-experts model, with the embedding before and the output head after if asked for.

    Base class of the models; each says in ``block_class`` what its blocks are.

    Args:
        config: the sizes of the whole model.
        layers: numbers of the blocks; all of them by default.
        group: the expert-parallel process group (or its name), None to hold all experts.
        embed: whether the input is tokens, int64 [batch, sequence]; else it is [batch, sequence, hidden].
        head: whether the output is logits, [batch, sequence, vocabulary]; else it is [batch, sequence, hidden].
        seed: None leaves memory as allocated, for a checkpoint to fill.
        device: "meta" allocates nothing; call ``to_empty`` and ``reset_parameters`` later.
        dtype: of all parameters.
        moe: the class of the expert layers.

    Raises:
        GraphError: a layer that the config does not have, or experts that the group cannot share equally.
    """

    config: MoEConfig
    block_class: ClassVar[Callable[..., nn.Module]]

    def __init__(
        self,
        config: MoEConfig,
        layers: Iterable[int] | None = None,
        group: Group | None = None,
        *,
        embed: bool = False,
        head: bool = False,
        seed: int | None = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        moe: type[MoE] = MoE,
    ) -> None:
        made: dict[str, Any] = {"device": torch.device("meta"), "dtype": dtype}
        super().__init__(
            config,
            layers,
            lambda number: self.block_class(config, number, group, moe, **made),
            embed=nn.Embedding(config.vocabulary, config.hidden, **made) if embed else None,
            norm=nn.RMSNorm(config.hidden, eps=config.rms_eps, **made) if head else None,
            head=nn.Linear(config.hidden, config.vocabulary, bias=False, **made) if head else None,
            seed=seed,
            device=device,
        )

    def _through_blocks(self, x: Tensor) -> Tensor:
        parts = self.config.nano_batches if self.config.nano_batched == "stage" else 1
        return split_forward(super()._through_blocks, x, parts)
