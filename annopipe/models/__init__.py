"""The models that examples, tests and benchmarks share, all with our own tags and whole or as pipeline stages.

DeepSeek-V3-, Mixtral- and Qwen3-style mixtures of experts, a dense GPT, two towers and a plain perceptron;
``Routing`` says where tokens go in a mixture of experts.
"""

from annopipe.models.config import DeepSeekV3Config
from annopipe.models.deepseek import Block, DeepSeekV3Stage, tiny_stage
from annopipe.models.gpt import GPTConfig, GPTStage
from annopipe.models.mixtral import MixtralConfig, MixtralStage
from annopipe.models.mlp import MLPConfig, MLPStage
from annopipe.models.moe import MoE
from annopipe.models.plain import PlainMoE
from annopipe.models.qwen3 import Qwen3MoEConfig, Qwen3MoEStage
from annopipe.models.routing import Routing
from annopipe.models.two_tower import Contrast, ImageTower, TextTower, TwoTowerConfig

__all__ = [
    "Block",
    "Contrast",
    "DeepSeekV3Config",
    "DeepSeekV3Stage",
    "GPTConfig",
    "GPTStage",
    "ImageTower",
    "MLPConfig",
    "MLPStage",
    "MixtralConfig",
    "MixtralStage",
    "MoE",
    "PlainMoE",
    "Qwen3MoEConfig",
    "Qwen3MoEStage",
    "Routing",
    "TextTower",
    "TwoTowerConfig",
    "tiny_stage",
]
