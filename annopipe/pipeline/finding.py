"""What has been prepared for calls of one signature: found again, or prepared now, by agreement of all ranks."""

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence

from torch import nn

from annopipe.pipeline.calls.microbatch_calls import Call, key_of_calls
from annopipe.pipeline.calls.module_state import ModuleState, state_of
from annopipe.pipeline.calls.prepared import Prepared
from annopipe.pipeline.calls.python_values import PythonValues, loss_values, python_values
from annopipe.pipeline.calls.retraces import Retraces
from annopipe.pipeline.calls.signatures import Recent
from annopipe.pipeline.checks import check_modules
from annopipe.pipeline.evaluation import forwards_of
from annopipe.pipeline.preparing import Ready, Settings
from annopipe.pipeline.tied import TiedParameters

__all__ = ["Finder", "ModuleStates"]

ModuleStates = Mapping[int, ModuleState]
_KEPT = 64  # keys of calls


class Finder:
    """The preparations of one rank's pipeline.

    Attributes:
        first: a stage of this rank that the positional inputs of a step go to; None where there is none.
        holds_last: whether this rank holds the last stage, or that of a copy, and so calls the loss.

    Args:
        settings: what stays the same for all calls.
        modules: of this rank, by stage.
        tied: compared before anything is prepared.
        make: prepares for one call.
    """

    def __init__(
        self,
        settings: Settings,
        modules: Mapping[int, nn.Module],
        tied: TiedParameters,
        make: Callable[[Settings, Mapping[int, nn.Module], Call], Ready],
    ) -> None:
        self._settings, self._modules, self._tied, self._make = settings, modules, tied, make
        placement = settings.schedule.placement
        self.first = next((modules[stage] for stage in placement.sources if stage in modules), None)
        self.holds_last = not modules.keys().isdisjoint(placement.output_stages)
        self._prepared: Prepared[Ready] = Prepared()
        self._said: Recent[Hashable, str] = Recent(_KEPT)  # what this rank says to the others, by key
        self._retraces = Retraces(_KEPT)

    def states(self) -> ModuleStates:
        """Of this rank's modules now."""
        return {index: state_of(module) for index, module in self._modules.items()}

    def find(self, calls: Sequence[Call], states: ModuleStates, *, evaluates: bool = False) -> Ready:
        """What was prepared for such calls; prepared now when there is nothing.

        Args:
            calls: of one step.
            states: of the modules now.
            evaluates: whether only the outputs of the last stage are wanted.

        Raises PipelineError, on every rank, when one cannot prepare.
        """
        values, settings = self._python_values(states), self._settings
        if evaluates:
            schedule = forwards_of(settings.schedule)
            settings = dataclasses.replace(settings, schedule=schedule, loss_fn=None, evaluates=True)
        around = evaluates, *states.keys(), *(state.key for state in states.values())
        said = self._in_words(calls, states, around)
        signature, is_new = settings.peers.agree(f"{said} {values}", self._prepared.__contains__)
        if is_new:
            self._tied.check(settings.peers)
            with settings.peers.unhurried():
                made = self._make(settings, self._modules, calls[0])
            self._prepared.keep(signature, made, values)
            self._retraces.note(calls[0].named(self.first), around, self._prepared.python_values())
        return self._prepared[signature]

    def _in_words(self, calls: Sequence[Call], states: ModuleStates, around: Hashable) -> str:
        own = key_of_calls(calls)
        said = self._said.get((own, around))
        if said is None:
            check_modules({f"{index}.{name}": t for index, s in states.items() for name, t in s.tensors.items()})
            said = hashlib.sha256(repr((own, around)).encode()).hexdigest()
            self._said.put((own, around), said)
        return said

    def _python_values(self, states: ModuleStates) -> PythonValues:
        """The Python values that the stages of this rank and the loss may read."""
        loss = loss_values(self._settings.loss_fn) if self.holds_last else {}
        named = {index: python_values(state) for index, state in states.items()}
        return {**{f"stage {index}: {name}": v for index, found in named.items() for name, v in found.items()}, **loss}
