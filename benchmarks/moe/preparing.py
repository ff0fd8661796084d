"""From variants to steps that can be timed, and to what the simulator says of them."""

import contextlib
import dataclasses
from typing import Any

import torch.distributed as dist

import annopipe as ap
from annopipe.ordering.combining import StageNodeCosts
from annopipe.simulation.ranks.timeline import ScheduleTimeline
from benchmarks.alternation import in_real_time
from benchmarks.moe.case import MoeCase
from benchmarks.moe.groups import Groups, hand_over_s, measured_paces, sum_s
from benchmarks.moe.nano import chosen, least_exposed_s
from benchmarks.moe.pacing import Paces
from benchmarks.moe.predicting import Predictor
from benchmarks.moe.steps import Step, apart, eager_step, our_step, schedule_of, stages_of
from benchmarks.moe.variant import SEQUENTIAL, Variant
from benchmarks.progress import tell

__all__ = ["Prepared", "Preparer", "Setting", "undisturbed"]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What was measured for one skew of the routing.

    seconds: what a stretch of paced computation asks for.
    """

    seconds: float
    paces: Paces
    predictor: Predictor


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A variant that can run.

    timeline: of the step without the sum of gradients; on rank 0 only, None elsewhere.
    """

    variant: Variant
    schedule: ap.Schedule
    step: Step
    timeline: ScheduleTimeline | None
    reason: str = ""
    least_exposed_s: float = 0.0


def undisturbed(case: MoeCase) -> contextlib.AbstractContextManager[None]:
    """In real time where a rank waits, for the most part; as ever where it computes."""
    return in_real_time() if case.paced else contextlib.nullcontext()


class Preparer:
    """Prepares the variants of a case; all ranks ask for the same ones in the same order."""

    def __init__(self, case: MoeCase, groups: Groups) -> None:
        self._case, self._groups = case, groups
        with undisturbed(case):
            self.handed_s = hand_over_s(case, groups)
        self.summed_s = 0.0  # known when a variant has been prepared
        self._settings: dict[float, Setting] = {}

    def setting(self, skew: float) -> Setting:
        """What is measured for a skew, once."""
        if skew not in self._settings:
            tell(f"measuring the network{f' with skew {skew:g}' if skew != 1.0 else ''}")
            with undisturbed(self._case):
                seconds, paces = measured_paces(self._case, self._groups, skew)
            predictor = Predictor(self._case, self._groups, seconds, self.handed_s, skew)
            self._settings[skew] = Setting(seconds, paces, predictor)
        return self._settings[skew]

    def prepared(self, variant: Variant) -> Prepared:
        """The step of a variant, and what it should take."""
        setting, case = self.setting(variant.skew), self._case
        tell(f"preparing {variant}")
        schedule, reason, least_s = schedule_of(variant, case), "", 0.0
        costs = setting.paces.costs if case.paced else setting.predictor.measured(schedule, compiled=variant.compiled)
        if variant.nano_batches > 1:
            whole = schedule
            found = self._action_costs(whole, costs, variant, setting)
            schedule, reason = chosen(whole, found, variant.nano_batches)
            if found is not None:
                graphs = setting.predictor.graphs(whole)
                least_s = least_exposed_s(whole, graphs, costs, variant.nano_batches)
        modules = stages_of(schedule, case, setting.seconds, self._groups, variant.skew)
        if variant.runtime == "annopipe":
            step = our_step(variant, schedule, modules, case, self._groups, costs)
        else:
            attached = costs if variant.runtime == "attached" else None
            step = eager_step(variant, modules, case, self._groups, attached)
            step.run()  # PyTorch learns shapes in the first step, by computing once more; ap.attach traces
            for module in step.modules:
                module.zero_grad()
        if not self.summed_s:
            with undisturbed(case):
                self.summed_s = sum_s(step.modules, self._groups)
        timeline = self._simulated(variant, schedule, costs, setting)
        return Prepared(variant, schedule, step, timeline, reason, least_s)

    def _simulated(
        self, variant: Variant, schedule: ap.Schedule, costs: StageNodeCosts, setting: Setting
    ) -> ScheduleTimeline | None:
        found = self._action_costs(schedule, costs, variant, setting)
        if found is None:
            return None
        simulated: Any = ap.simulate(schedule if variant.policy else apart(schedule), found)
        return simulated

    def _action_costs(
        self, schedule: ap.Schedule, costs: StageNodeCosts, variant: Variant, setting: Setting
    ) -> ap.ActionCosts | None:
        if dist.get_rank() != 0:
            return None
        policy = variant.policy or SEQUENTIAL
        return setting.predictor.action_costs(schedule, costs, policy, compiled=variant.compiled)
