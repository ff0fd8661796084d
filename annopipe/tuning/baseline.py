"""What there is without a search: the schedules of the library, with layers evenly over their stages."""

import itertools
from collections.abc import Iterable, Iterator

from annopipe.errors import ScheduleError
from annopipe.scheduling.library import entry, schedule_spec, schedules
from annopipe.scheduling.placement import Placement
from annopipe.tuning.layout import Layout
from annopipe.tuning.partition import Family, even
from annopipe.tuning.trial import Rules, Trial, scored
from annopipe.tuning.workload import Workload

__all__ = ["library_trials", "named_trial"]

_CHUNKS = (2, 3, 4)


def library_trials(work: Workload, *, copies: int = 2, name: str = "") -> list[Trial]:
    """Every library schedule that trains the workload's kind of model, with every even split of its layers.

    A split is even when the stages of a chain differ by at most one layer: the longer ones first, or last. Of layers
    that can compute again what they keep, all do or none does.

    copies: 1 leaves out schedules with two copies of the model.  name: only this schedule; "" for all.
    """
    if work.batch_wide and not work.towers:
        return []  # the library's schedules of a chain begin with backwards before all forwards are done
    found = []
    for rules in _rules(work, [name] if name else schedules()):
        try:
            placement = schedule_spec(rules.library, work.ranks, work.microbatches, **dict(rules.options)).placement
        except ScheduleError:  # the schedule has no meaning for these counts
            continue
        family = _family(work, placement)
        if placement.copies > copies or not family.fits(work):
            continue
        bounds = dict.fromkeys(even(work, family, longer_last=longer_last) for longer_last in (False, True))
        found += [Trial(family, layout, rules) for cut in bounds for layout in Layout.variants(work, placement, cut)]
    return found


def named_trial(work: Workload, name: str) -> Trial | None:
    """The best even split of one of the library's schedules; None where it has no meaning for the workload.

    >>> from annopipe.tuning.layers import Layer
    >>> work = Workload((Layer(1.0, 1.0, 1.0),) * 4, ranks=4, microbatches=4)
    >>> named_trial(work, "1f1b").name, named_trial(work, "zbv")
    ('1f1b', None)
    """
    if name not in schedules():
        return None
    return min(library_trials(work, name=name), key=lambda trial: scored(work, trial), default=None)


def _rules(work: Workload, names: Iterable[str]) -> Iterator[Rules]:
    for name in names:
        about = entry(name)
        if name == "forward-only" or (name == "distmm-pipe") != bool(work.towers):
            continue
        if work.towers:
            for sizes in itertools.product(range(1, work.ranks), repeat=len(work.towers)):
                if sum(sizes) == work.ranks - 1:
                    yield Rules(library=name, options=(("towers", sizes),))
        elif dict(about.options).get("chunks"):
            for chunks in _CHUNKS:
                yield Rules(library=name, options=(("chunks", chunks),))
        else:
            yield Rules(library=name)


def _family(work: Workload, placement: Placement) -> Family:
    if not work.towers:
        return Family.of_chain(placement)
    groups: list[tuple[int, ...]] = []
    last = placement.output_stages[0]
    for stage in placement.sources:
        group = [stage]
        while placement.successors[group[-1]] != (last,):
            group.append(placement.successors[group[-1]][0])
        groups.append(tuple(group))
    return Family(placement, (*groups, (last,)))
