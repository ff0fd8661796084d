"""The rules, one a file, and the list of them."""

from collections.abc import Mapping

from rewriters.rules import (
    attention,
    combine,
    dispatch,
    exchanges,
    expert_loop,
    experts,
    from_torch,
    misspelt,
    nano_batch,
    patch_list,
    router,
    shared,
    split_marks,
    stage_ready,
    strip,
    to_torch,
    waits,
)
from rewriters.rules.rule import Outcome, Place, Rule

__all__ = ["RULES", "Outcome", "Place", "Rule"]

# By code; rules that are no tagging rules are applied before (3, 4, 2.1) or behind (2.2) those, see rewriters.engine.
RULES: Mapping[str, Rule] = {
    module.RULE.code: module.RULE
    for module in (
        dispatch,
        experts,
        from_torch,
        combine,
        attention,
        router,
        shared,
        expert_loop,
        exchanges,
        waits,
        from_torch,
        to_torch,
        strip,
        misspelt,
        nano_batch,
        stage_ready,
        split_marks,
        patch_list,
    )
}
