"""``dualpipe`` and ``megatron``: the two published hand-made orders of a forward with a backward, as patterns.

Lane F of the pattern stands for every lane that runs a forward, lane B for every lane that runs a backward; what a
model lacks (experts of its own, a shared expert) is skipped. With lanes of one kind only, the published orders say
nothing, and nano-batches take turns (``annopipe.ordering.builtin_policies.turns``).

Sources: DualPipe, DeepSeek-V3 report (arXiv 2412.19437, section 3.2.1 and figure 4), and the launch order in the
published profile of its training (github.com/deepseek-ai/profile-data); Megatron-LM's combined 1F1B
(``megatron/core/models/common/model_chunk_schedule_plan.py``).
"""

from annopipe.ordering.builtin_policies.turns import in_turns
from annopipe.ordering.patterns import apply, parse, with_lanes
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
    return _published(problem, DUALPIPE)


def megatron(problem: OverlapProblem) -> list[int]:
    """Megatron-LM's order: the experts' weight gradients first; the backward's dispatch hides behind the forward."""
    return _published(problem, MEGATRON)


def _published(problem: OverlapProblem, text: str) -> list[int]:
    """The pattern with the problem's lanes for F and B; turns where several lanes of one kind communicate."""
    differentiating = {node.own_graph for node in problem.nodes if node.phase in ("input_grad", "weight_grad")}
    backward = {node.lane for node in problem.nodes if node.own_graph in differentiating}
    parts = {
        "F": tuple(lane for lane in problem.lanes if lane not in backward),
        "B": tuple(lane for lane in problem.lanes if lane in backward),
    }
    if not all(parts.values()) and len({node.lane for node in problem.nodes if node.kind == "launch"}) > 1:
        return in_turns(problem, backward=bool(backward))
    return apply(problem, with_lanes(parse(text), parts), optional=True)
