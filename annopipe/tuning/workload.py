"""What a schedule is searched for: the layers of a model in order, what each costs, and the ranks that share them.

A workload says nothing of stages: the search chooses them. A model with towers is several chains whose last layers all
hand on to the first of ``layers``.
"""

import dataclasses
import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from annopipe.costs.cluster import Cluster
from annopipe.errors import CostError
from annopipe.tuning.layer_checks import AMOUNT, LARGEST, is_amount, layer_problems
from annopipe.tuning.layers import Layer
from annopipe.tuning.workload_files import read_workloads, workload_text

if TYPE_CHECKING:
    from annopipe.tuning.model_workload import ModelWorkload
    from annopipe.tuning.priced import TrainingState

__all__ = ["Workload"]


# No slots: what is derived is kept.
@dataclass(frozen=True, repr=False)
class Workload:
    """A model, the ranks that train it, and how many microbatches a step has; plain data.

    Attributes:
        layers: in the order of the model; after the towers, where there are some.
        ranks: how many ranks share the layers.
        microbatches: in one step.
        towers: chains of layers that all feed the first of ``layers``.
        batch_wide: whether the loss needs the outputs of all microbatches at once, as a contrastive loss does; None:
            where there are towers.
        message: time of one transfer between two ranks; a link carries one after the other in each direction.
        latency: from the end of sending to arrival.
        memory: most that a rank may hold of activations and parameters; None: no limit.
        speed: of each rank: a layer takes its time divided by that; () is 1 for all.
        name: what tables call it.

    Raises CostError for a number that is no time or no count, and for memory that no order can keep to.

    >>> Workload((Layer(1.0, 1.0, 1.0),) * 8, ranks=4, microbatches=8, name="small")
    Workload(small: 8 layers, 4 ranks, 8 microbatches)
    """

    layers: tuple[Layer, ...]
    ranks: int
    microbatches: int
    towers: tuple[tuple[Layer, ...], ...] = ()
    batch_wide: bool | None = None
    message: float = 0.0
    latency: float = 0.0
    memory: float | None = None
    speed: tuple[float, ...] = ()
    name: str = field(default="workload", compare=False)

    def __post_init__(self) -> None:
        for name in ("layers", "towers", "speed"):
            object.__setattr__(self, name, self._several(name, getattr(self, name)))
        object.__setattr__(self, "towers", tuple(self._several("a tower", tower) for tower in self.towers))
        if self.batch_wide is None:
            object.__setattr__(self, "batch_wide", bool(self.towers))
        if problem := next(_problems(self), None):
            raise CostError(f"workload {self.name!r}: {problem}")

    def _several(self, name: str, given: object) -> tuple[Any, ...]:
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise CostError(f"workload {self.name!r}: {name} is {given!r}: give a list")
        return tuple(given)

    def __repr__(self) -> str:
        towers = f"towers of {' and '.join(str(len(tower)) for tower in self.towers)}, " if self.towers else ""
        counts = f"{len(self.layers)} layers, {self.ranks} ranks, {self.microbatches} microbatches"
        return f"Workload({self.name}: {towers}{counts})"

    @classmethod
    def from_toml(cls, path: str | PathLike[str], name: str | None = None) -> "Workload":
        """One workload of a file: the only one that is there, or that of a name.

        Raises CostError for a file that cannot be read, an unknown field, or a name that is not there.
        """
        found = read_workloads(path, _FIELDS)
        if name is None and len(found) > 1:
            raise CostError(f"{path} has {len(found)} workloads: say which, one of {', '.join(found)}")
        chosen = next(iter(found)) if name is None else name
        if chosen not in found:
            raise CostError(f"{path} has no workload {name!r}; it has {', '.join(found)}")
        return cls(**found[chosen])

    @classmethod
    def all_from_toml(cls, path: str | PathLike[str]) -> "list[Workload]":
        """All workloads of a file, in its order; see `from_toml`."""
        return [cls(**arguments) for arguments in read_workloads(path, _FIELDS).values()]

    @overload
    @classmethod
    def from_model(
        cls,
        model: object,
        cluster: Cluster,
        *,
        batch: int,
        sequence: int = ...,
        ranks: int,
        data: int | None = ...,
        expert: int = ...,
        microbatch_size: int | None = ...,
        memory: float | None = ...,
        recompute: object = ...,
        state: "TrainingState | None" = ...,
        options: Mapping[str, Any] | None = ...,
    ) -> "Workload": ...

    @overload
    @classmethod
    def from_model(
        cls,
        model: object,
        *,
        batch: int,
        sequence: int = ...,
        recompute: object = ...,
        state: "TrainingState | None" = ...,
        options: Mapping[str, Any] | None = ...,
    ) -> "ModelWorkload": ...

    @classmethod
    def from_model(
        cls,
        model: object,
        cluster: Cluster | None = None,
        *,
        batch: int,
        sequence: int = 4096,
        ranks: int | None = None,
        data: int | None = None,
        expert: int = 1,
        microbatch_size: int | None = None,
        memory: float | None = None,
        recompute: object = "all",
        state: "TrainingState | None" = None,
        options: Mapping[str, Any] | None = None,
    ) -> "Workload | ModelWorkload":
        """The layers of a real model, traced without memory and priced by roofline; times in seconds, memory in bytes.

        With ``ranks`` it is one pipeline's workload on a cluster. Without, it is a ``ModelWorkload``, for which
        ``ap.tune(work, cluster)`` searches the degrees, too.

        Args:
            model: a name, such as "deepseek-v3-671b" (``annopipe tune --help`` lists them); an ``ap.ModelSpec``; or
                ``ap.ModelLayers``, a list of modules with examples.
            cluster: whose hardware sets the prices; left out without ``ranks``.
            batch: sequences of one step, on all devices together.
            sequence: tokens of one sequence.
            ranks: of one pipeline.
            data: pipelines; as many as fill the cluster if left out.
            expert: how many of these share the experts.
            microbatch_size: sequences of one microbatch; 1 if left out.
            memory: of one rank, in bytes, instead of the cluster's.
            recompute: what layers can compute again, as in ``ap.trace``; None: nothing.
            state: what training keeps of a parameter beside itself; see ``ap.TrainingState``.
            options: arguments of ``ap.costs.roofline``: ``node_limit``, ``matmul_dtype``, ...; ``skew`` is that of what
                layers keep, too.

        Raises CostError for an unknown name, for degrees that do not fit, and for memory that no schedule can keep to;
        CaptureError for a layer that cannot be traced.

        >>> import torch, annopipe as ap
        >>> cluster = ap.Cluster(2, ap.costs.machine("h100"), 80e9)
        >>> layers = ap.ModelLayers([torch.nn.Linear(8, 8)] * 4, inputs=(torch.ones(2, 8),), sequences=2)
        >>> ap.Workload.from_model(layers, cluster, batch=8, ranks=2)
        Workload(model: 4 layers, 2 ranks, 4 microbatches)
        """
        made: ModelWorkload = importlib.import_module("annopipe.workloads.from_model").model_workload(
            model, batch=batch, sequence=sequence, recompute=recompute, state=state, options=options
        )
        if ranks is None:
            given = {"cluster": cluster, "data": data, "microbatch_size": microbatch_size, "memory": memory}
            if said := [name for name, value in given.items() if value is not None]:
                raise CostError(
                    f"{said[0]} is given and ranks is not: give the ranks of a pipeline, or search for all degrees "
                    f"with ap.tune(work, cluster, {said[0] if said[0] != 'cluster' else 'memory'}=...)"
                )
            return made
        if cluster is None:
            raise CostError(f"ranks={ranks} are given and no cluster: give the ap.Cluster that they are of")
        return made.in_degrees(cluster, ranks, data, expert, microbatch_size, memory)

    def to_toml(self) -> str:
        """The ``[[workload]]`` table that `from_toml` reads.

        >>> print(Workload((Layer(1.0, 1.0, 0.5),) * 4, ranks=2, microbatches=8, name="small").to_toml())
        [[workload]]
        name = "small"
        layers = [
          { repeat = 4, F = 1.0, I = 1.0, W = 0.5 },
        ]
        ranks = 2
        microbatches = 8
        <BLANKLINE>
        """
        said = {name: getattr(self, name) for name, default in _DEFAULTS.items() if getattr(self, name) != default}
        if self.batch_wide == bool(self.towers):
            del said["batch_wide"]
        return workload_text({"name": self.name, **said})

    @cached_property
    def chains(self) -> tuple[tuple[Layer, ...], ...]:
        """The towers and then the layers where they meet; without towers the layers alone."""
        return (*self.towers, self.layers)

    @cached_property
    def all_layers(self) -> tuple[Layer, ...]:
        """The layers of all chains, chain by chain."""
        return tuple(layer for chain in self.chains for layer in chain)

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """Of each rank."""
        return self.speed or (1.0,) * self.ranks

    @cached_property
    def work(self) -> float:
        """Time of the computation of one microbatch at speed 1."""
        return math.fsum(layer.work for layer in self.all_layers)

    @property
    def has_comm(self) -> bool:
        """Whether layers communicate, so that combining a forward and a backward hides something."""
        return any(layer.comm for layer in self.all_layers)

    @property
    def has_reduce(self) -> bool:
        """Whether gradients are summed over data-parallel ranks at the end of a step."""
        return any(layer.reduce for layer in self.all_layers)


_DEFAULTS = {each.name: each.default for each in dataclasses.fields(Workload)}
_FIELDS = tuple(_DEFAULTS)


def _problems(work: Workload) -> Iterator[str]:
    """What is wrong; each check takes for granted what those before it found."""
    if not isinstance(work.name, str):
        yield f"its name is {work.name!r}: give a text"
    for name in ("ranks", "microbatches"):
        value: object = getattr(work, name)
        if type(value) is not int or value < 1:
            yield f"{name}={value!r}: give a whole number, 1 or more"
    if not work.layers or not all(work.towers):
        yield "give every chain one layer or more"
    if len(work.towers) == 1:
        yield "a single tower is a chain: put its layers in front of the others"
    if not all(isinstance(layer, Layer) for layer in work.all_layers):
        yield "its layers have to be annopipe.Layer"
    if not isinstance(work.batch_wide, bool):
        yield f"batch_wide={work.batch_wide!r}: give True or False"
    yield from _amount_problems(work)
    if work.speed and len(work.speed) != work.ranks:
        yield f"speed has {len(work.speed)} entries and there are {work.ranks} ranks: give one for each"
    if len(work.all_layers) < work.ranks:
        yield f"{len(work.all_layers)} layers are fewer than {work.ranks} ranks: take fewer ranks"
    if not work.work:
        yield "no layer takes any time"
    yield from _memory_problems(work)


def _amount_problems(work: Workload) -> Iterator[str]:
    seen: set[int] = set()  # a layer that comes often is often the same object
    for index, layer in enumerate(work.all_layers):
        if id(layer) not in seen:
            seen.add(id(layer))
            yield from layer_problems(layer, f"layer {index}")
    for name in ("message", "latency", "memory"):
        value = getattr(work, name)
        if not is_amount(value) and not (name == "memory" and value is None):
            yield f"{name}={value!r}: {AMOUNT}"
    if any(not is_amount(speed) or speed < 1 / LARGEST for speed in work.speed):
        yield f"speed={work.speed}: give numbers above 0"


def _memory_problems(work: Workload) -> Iterator[str]:
    """A microbatch that is under way holds the activations of all its layers, on all ranks together."""
    if work.memory is None:
        return
    held = _held([layer.recomputed() for layer in work.all_layers])
    least = max(*held, math.fsum(held) / work.ranks)
    if work.memory < least:
        yield (
            f"memory={work.memory:g} is too little for any schedule: with one microbatch in flight the fullest rank "
            f"holds {least:g} or more; give that, more ranks, or smaller microbatches"
        )


def _held(layers: Sequence[Layer]) -> list[float]:
    return [layer.activation + layer.parameters for layer in layers]
