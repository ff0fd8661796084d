"""The models that examples, tests and benchmarks share: a DeepSeek-V3-style mixture of experts with our own tags."""

from annopipe.models.config import DeepSeekV3Config
from annopipe.models.deepseek import Block, DeepSeekV3Stage, tiny_stage
from annopipe.models.moe import MoE
from annopipe.models.plain import PlainMoE

__all__ = ["Block", "DeepSeekV3Config", "DeepSeekV3Stage", "MoE", "PlainMoE", "tiny_stage"]
