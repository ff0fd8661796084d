"""What the backward of each stage of a pipeline computes again: the same choice for all, or one by stage."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from annopipe.errors import PipelineError
from annopipe.graphs.recompute_choice import Recompute, RecomputeChoice, matching, recompute_choice
from annopipe.pipeline.ranks.peers import AgreedError

__all__ = ["StageRecompute", "check_regions", "recompute_choices"]

StageRecompute: TypeAlias = Recompute | Mapping[int, Recompute]


def recompute_choices(given: StageRecompute, weights_of: Sequence[int]) -> tuple[RecomputeChoice, ...]:
    """The choice for each stage; a stage may lack a region that others have.

    Args:
        given: what is chosen; a mapping says it for both copies of a stage at once, if it does not name the second.
        weights_of: by stage, the first one with the same weights.

    Raises CaptureError for what is no choice, PipelineError for a stage that there is not.

    >>> [str(choice) for choice in recompute_choices({0: "all"}, [0, 1, 0, 1])]
    ['all', 'nothing', 'all', 'nothing']
    """
    stages = len(weights_of)
    if isinstance(given, Mapping):
        for stage in given:
            if not isinstance(stage, int) or not 0 <= stage < stages:
                raise PipelineError(f"recompute names stage {stage!r}: the stages are 0 to {stages - 1}")
    by_stage = given if isinstance(given, Mapping) else dict.fromkeys(range(stages), recompute_choice(given))
    choices = [recompute_choice(by_stage.get(stage, by_stage.get(first))) for stage, first in enumerate(weights_of)]
    return tuple(dataclasses.replace(choice, absent=True) for choice in choices)


def check_regions(choices: Sequence[RecomputeChoice], regions: Sequence[Sequence[str]]) -> None:
    """Check, with what all stages have told, that the regions to compute again exist.

    Args:
        regions: by stage, the paths of its regions.

    Raises AgreedError for a name that no stage for which it is chosen has.
    """
    for name in dict.fromkeys(name for choice in choices for name in choice.regions):
        mine = [paths for choice, paths in zip(choices, regions, strict=True) if name in choice.regions]
        paths = list(dict.fromkeys(path for stage in mine for path in stage))
        if not matching(paths, name):
            shown = ", ".join(paths[:20]) + (", ..." if len(paths) > 20 else "")
            have = f"they have {shown}" if paths else "they have none: tag the forward with ap.region"
            raise AgreedError(f"recompute: no stage has a region {name!r}; {have}")
