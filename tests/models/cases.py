"""The models, routings and lane combinations that tests run through, tiny."""

import dataclasses
from typing import Any

import torch

from annopipe.models import (
    DeepSeekV3Config,
    DeepSeekV3Stage,
    GPTConfig,
    GPTStage,
    MixtralConfig,
    MixtralStage,
    MLPConfig,
    MLPStage,
    Qwen3MoEConfig,
    Qwen3MoEStage,
    Routing,
)
from annopipe.models.moe_config import MoEConfig, NanoBatched
from annopipe.models.stage import MoEStage

CONFIGS: dict[str, MoEConfig] = {
    "deepseek": DeepSeekV3Config.tiny(),
    "mixtral": MixtralConfig.tiny(),
    "qwen3": Qwen3MoEConfig.tiny(),
}
STAGES: dict[str, type[MoEStage]] = {"deepseek": DeepSeekV3Stage, "mixtral": MixtralStage, "qwen3": Qwen3MoEStage}
MOE = tuple(CONFIGS)
ROUTINGS = ("learned", "balanced", "skewed")
HIDDEN = 32  # of all of them, so that any two can share a multiplexed graph


def routing(kind: Any, config: MoEConfig) -> Routing:
    """The routing of a kind; skewed leaves so few experts that, of four ranks, at least one gets no token."""
    return Routing(kind, exponent=1.5, idle=config.experts - config.top_k - 1 if kind == "skewed" else 0, seed=2)


def moe_stage(
    model: str,
    kind: str = "learned",
    layers: int = 1,
    nano_batches: int = 1,
    nano_batched: NanoBatched = "moe",
    **options: Any,
) -> MoEStage:
    """A stage of so many blocks."""
    lanes: dict[str, Any] = {"nano_batches": nano_batches, "nano_batched": nano_batched}
    config = dataclasses.replace(CONFIGS[model], layers=layers, **lanes)
    config = dataclasses.replace(config, routing=routing(kind, config))
    return STAGES[model](config, **options)


def gpt_stage(layers: int = 1, **options: Any) -> GPTStage:
    return GPTStage(dataclasses.replace(GPTConfig.tiny(), layers=layers), **options)


def mlp_stage(layers: int = 1, **options: Any) -> MLPStage:
    return MLPStage(dataclasses.replace(MLPConfig.tiny(), layers=layers), **options)


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients of parameters that have one, by name."""
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def rows(seed: int, *shape: int) -> torch.Tensor:
    """Random numbers that depend on the seed only."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
