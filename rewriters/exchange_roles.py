"""Which part of a layer an all-to-all is: count exchange, dispatch or combine; or no answer.

The first of these that says anything decides:

1. what is sent, what it is assigned to, or a function around it is called after counts, or it is under
   ``torch.no_grad()``: count;
2. a function around it is called dispatch or permute_and..., combine, reverse or unpermute;
3. it comes before or behind the experts, in the block of both: dispatch or combine;
4. nothing: the user says it (``--role``).
"""

import re
from collections.abc import Collection

import libcst as cst

from rewriters.names import dotted, target_names
from rewriters.reading import Found, Reading
from rewriters.surroundings import blocks, functions, is_without_grad, statement
from rewriters.walking import children

__all__ = ["UNDECIDED", "exchange_role"]

UNDECIDED = (
    "an all-to-all, but nothing says whether it is a count exchange, a dispatch or a combine: name it with --role, or "
    "tag it by hand"
)
_COUNT = re.compile(r"counts?(?![a-z])|tokens_per_expert|batch_size_per_expert")
_GROUP = re.compile(r"(^|_)(group|pg|mesh)$")
_DISPATCH = re.compile(r"dispatch|permute_and")
_COMBINE = re.compile(r"combine|reverse|un_?permute")


def exchange_role(found: Found, reading: Reading, experts: Collection[cst.CSTNode]) -> str | None:
    """The role of an all-to-all, or None.

    Args:
        experts: the statements that compute experts.
    """
    around = functions(found)
    sent = [*_payload(found), *_assigned(found), *around]
    if any(_COUNT.search(name) for name in sent) or is_without_grad(found, reading):
        return "count"
    for name in around:
        # "permute_and_all_to_all" dispatches, "unpermute" combines.
        if _COMBINE.search(name):
            return "combine"
        if _DISPATCH.search(name):
            return "dispatch"
    return _by_order(found, experts)


def _payload(found: Found) -> list[str]:
    """The name of what is sent: the first argument that is no process group."""
    if isinstance(found.node, cst.Call):
        for argument in found.node.args:
            name = dotted(argument.value)
            if not _GROUP.search(name):
                return [name.rpartition(".")[2]]
    return []


def _assigned(found: Found) -> list[str]:
    line = statement(found)
    if not isinstance(line, cst.SimpleStatementLine):
        return []
    small = line.body[0]
    if isinstance(small, cst.Assign):
        return [name for target in small.targets for name in target_names(target.target)]
    return list(target_names(small.target)) if isinstance(small, cst.AnnAssign) else []


def _by_order(found: Found, experts: Collection[cst.CSTNode]) -> str | None:
    known = {id(node) for node in experts}
    for block, mine in blocks(found):
        indices = [index for index, node in enumerate(block.body) if node is not mine and _holds(node, known)]
        own = next(index for index, node in enumerate(block.body) if node is mine)
        if indices:
            before, after = any(i < own for i in indices), any(i > own for i in indices)
            return None if before and after else "dispatch" if after else "combine"
    return None


def _holds(node: cst.CSTNode, known: Collection[int]) -> bool:
    if id(node) in known:
        return True
    if isinstance(node, cst.SimpleStatementLine):
        return False
    return any(_holds(child, known) for child in children(node))
