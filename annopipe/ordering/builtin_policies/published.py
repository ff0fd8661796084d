"""``dualpipe`` and ``megatron``: the two published hand-made orders of a forward with a backward, as patterns.

Lane F of the pattern stands for every lane that runs a forward, lane B for every lane that runs a backward; what a
model lacks (experts of its own, a shared expert) is skipped. With lanes of one kind only there is nothing that the
published orders say, and the lanes go side by side.

Sources: DualPipe, DeepSeek-V3 report (arXiv 2412.19437, section 3.2.1 and figure 4), and the launch order in the
published profile of its training (github.com/deepseek-ai/profile-data); Megatron-LM's combined 1F1B
(``megatron/core/models/common/model_chunk_schedule_plan.py``).
"""

from annopipe.ordering.patterns import Pattern, apply, parse, with_lanes
from annopipe.ordering.problem import OverlapProblem

__all__ = ["DUALPIPE", "MEGATRON", "dualpipe", "megatron"]

DUALPIPE = """
    B.combine | F.attention ; F.dispatch | B.experts | B.shared | B.mlp ;
    B.dispatch | B.experts.W | B.shared.W | B.mlp.W ; F.experts | F.shared | F.mlp ;
    F.combine | B.attention | B.attention.W
"""
MEGATRON = """
    B.combine | F.attention ; B.experts | B.shared | B.mlp | F.dispatch ;
    B.experts.W | B.shared.W | B.mlp.W | B.dispatch ; F.experts | F.shared | F.mlp ;
    F.combine | B.attention ; B.attention.W
"""


def dualpipe(problem: OverlapProblem) -> list[int]:
    """DeepSeek's order: the backward's dispatch is launched ahead of the experts' weight gradients, which hide it."""
    return apply(problem, _bound(problem, parse(DUALPIPE)), optional=True)


def megatron(problem: OverlapProblem) -> list[int]:
    """Megatron-LM's order: the experts' weight gradients first; the backward's dispatch hides behind the forward."""
    return apply(problem, _bound(problem, parse(MEGATRON)), optional=True)


def _bound(problem: OverlapProblem, pattern: Pattern) -> Pattern:
    """The pattern with the problem's lanes for F and B."""
    backward = {node.lane for node in problem.nodes if node.phase in ("input_grad", "weight_grad")}
    parts = {
        "F": tuple(lane for lane in problem.lanes if lane not in backward),
        "B": tuple(lane for lane in problem.lanes if lane in backward),
    }
    return with_lanes(pattern, parts)
