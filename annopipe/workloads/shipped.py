"""The models that can be named: ``ModelSpec`` and the table of names."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from annopipe.errors import CostError
from annopipe.models import (
    Contrast,
    DeepSeekV3Config,
    DeepSeekV3Stage,
    GPTConfig,
    GPTStage,
    ImageTower,
    MixtralConfig,
    MixtralStage,
    Qwen3MoEConfig,
    Qwen3MoEStage,
    TextTower,
    TwoTowerConfig,
)
from annopipe.models.moe_config import MoEConfig
from annopipe.models.stage import MoEStage
from annopipe.workloads.model_layers import ModelLayers

__all__ = ["MODELS", "ModelSpec", "experts_model", "gpt_model", "model_named", "next_token_loss", "two_tower_model"]

Build = Callable[[dist.ProcessGroup | None, int, int], ModelLayers]


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """How to make the layers of a model for any number of ranks that share its experts, and any size of microbatch.

    Attributes:
        build: called with the process group that shares the experts (None: one rank has all), the number of sequences
            in a microbatch, and their length in tokens; tensors that it makes have no memory. The group has a size
            and a name, and nobody else in it.
        experts: how many experts the model has; 0 for none. Their number is a multiple of the ranks that share them.
        name: what tables call it.
    """

    build: Build
    experts: int = 0
    name: str = "model"


def next_token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The cross entropy of a batch of sequences, in float32.

    >>> next_token_loss(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]])).item() == torch.tensor(4.0).log().item()
    True
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def experts_model(name: str, config: MoEConfig, stage: type[MoEStage]) -> ModelSpec:
    """A mixture of experts: embedding, one layer for each block, head with loss."""

    def build(group: dist.ProcessGroup | None, sequences: int, length: int) -> ModelLayers:
        def part(*blocks: int, embed: bool = False, head: bool = False) -> MoEStage:
            return stage(config, blocks, group, embed=embed, head=head, seed=None, dtype=torch.bfloat16)

        kinds: dict[bool, MoEStage] = {}  # blocks differ in whether they have experts
        for number in range(config.layers):
            if config.has_experts(number) not in kinds:
                kinds[config.has_experts(number)] = part(number)
        blocks = [kinds[config.has_experts(number)] for number in range(config.layers)]
        tokens = torch.zeros(sequences, length, dtype=torch.int64)
        return ModelLayers(
            [part(embed=True), *blocks, part(head=True)],
            (tokens,),
            next_token_loss,
            torch.zeros_like(tokens),
            sequences=sequences,
            name=name,
        )

    return ModelSpec(build, config.experts, name)


def gpt_model(name: str, config: GPTConfig) -> ModelSpec:
    """A dense GPT: embedding, one layer for each block, head with loss; sequences are as long as its context."""

    def build(group: dist.ProcessGroup | None, sequences: int, length: int) -> ModelLayers:  # noqa: ARG001 - no experts
        longer = dataclasses.replace(config, context=max(config.context, length))

        def part(*blocks: int, embed: bool = False, head: bool = False) -> GPTStage:
            return GPTStage(longer, blocks, embed=embed, head=head, seed=None, dtype=torch.bfloat16)

        tokens = torch.zeros(sequences, length, dtype=torch.int64)
        return ModelLayers(
            [part(embed=True), *[part(0)] * config.layers, part(head=True)],
            (tokens,),
            next_token_loss,
            torch.zeros_like(tokens),
            sequences=sequences,
            name=name,
        )

    return ModelSpec(build, 0, name)


def two_tower_model(name: str, config: TwoTowerConfig) -> ModelSpec:
    """Two towers and a contrastive loss, of which each microbatch is priced with its own pairs alone."""

    def build(group: dist.ProcessGroup | None, sequences: int, length: int) -> ModelLayers:  # noqa: ARG001 - no experts
        dtype = torch.bfloat16

        def tower(kind: type[ImageTower] | type[TextTower], layers: int) -> list[ImageTower | TextTower]:
            ends = [kind(config, (), embed=front, head=not front, dtype=dtype) for front in (True, False)]
            return [ends[0], *[kind(config, (0,), embed=False, head=False, dtype=dtype)] * layers, ends[1]]

        pixels = torch.zeros(sequences, 3, config.pixels, config.pixels, dtype=dtype)
        return ModelLayers(
            [Contrast(config, dtype=dtype)],
            towers=(tower(ImageTower, config.image.layers), tower(TextTower, config.text.layers)),
            tower_inputs=((pixels,), (torch.zeros(sequences, config.context, dtype=torch.int64),)),
            sequences=sequences,
            name=name,
        )

    return ModelSpec(build, 0, name)


def _models() -> Mapping[str, ModelSpec]:
    found = [
        experts_model("deepseek-v3-671b", DeepSeekV3Config.v3_671b(), DeepSeekV3Stage),
        experts_model("deepseek-v3-16b", DeepSeekV3Config.v3_16b(), DeepSeekV3Stage),
        experts_model("qwen3-30b-a3b", Qwen3MoEConfig.a3b_30b(), Qwen3MoEStage),
        experts_model("mixtral-8x7b", MixtralConfig.m8x7b(), MixtralStage),
        *(gpt_model(f"gpt-5b-{size}k", GPTConfig.gpt_5b(size * 1024)) for size in (32, 64, 128, 256, 512)),
        two_tower_model("two-tower-l14", TwoTowerConfig.clip_l14()),
        two_tower_model("two-tower-bigg14", TwoTowerConfig.clip_bigg14()),
    ]
    return MappingProxyType({spec.name: spec for spec in found})


MODELS = _models()


def model_named(name: str) -> ModelSpec:
    """The model of that name.

    Raises CostError for a name that is not in the table.

    >>> model_named("mixtral-8x7b").experts
    8
    """
    if name not in MODELS:
        raise CostError(f"there is no model {name!r}: the names are {', '.join(MODELS)}; or give an ap.ModelSpec")
    return MODELS[name]
