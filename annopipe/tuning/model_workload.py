"""``ModelWorkload``: a model before anybody has said how many ranks share what; ``ap.tune`` searches that, too."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from annopipe.costs.cluster import Cluster
from annopipe.costs.hardware import Hardware
from annopipe.errors import CostError
from annopipe.tuning.degrees import Degrees, divisors
from annopipe.tuning.layer_checks import AMOUNT, is_amount
from annopipe.tuning.layers import Layer
from annopipe.tuning.priced import PricedLayer, PricedModel, TrainingState
from annopipe.tuning.workload import Workload

__all__ = ["ModelWorkload"]

_SIZES = (1, 2, 4, 8)

# Called with the hardware, how many ranks share the experts, and the sequences of a microbatch.
Pricing = Callable[[Hardware, int, int], PricedModel]


@dataclass(frozen=True, repr=False)
class ModelWorkload:
    """A model and the batch of one step; ``ap.Workload.from_model`` makes it.

    Attributes:
        price: what the layers take on some hardware, when so many ranks share the experts, for so many sequences.
        batch: sequences of one step, on all devices together.
        experts: of the model; 0 where it has none.
        state: what training keeps of a parameter.
        microbatch_size: the only one that the model was given for; None: any.
        name: what tables call it.

    Raises CostError for a batch that is no count.
    """

    price: Pricing
    batch: int
    experts: int = 0
    state: TrainingState = field(default_factory=TrainingState)
    microbatch_size: int | None = None
    name: str = "model"

    def __post_init__(self) -> None:
        if type(self.batch) is not int or self.batch < 1:
            raise CostError(f"batch={self.batch!r}: give the number of sequences in a step, 1 or more")
        if not isinstance(self.state, TrainingState):
            raise CostError(f"state is {self.state!r}: give an annopipe.TrainingState")

    def __repr__(self) -> str:
        return f"ModelWorkload({self.name}: batches of {self.batch})"

    def at(self, cluster: Cluster, degrees: Degrees, memory: float | None = None) -> Workload:
        """The workload at some degrees: one pipeline, its ranks, its share of the batch.

        memory: of one rank, in bytes; None: the cluster's.

        Raises CostError for degrees that are not those of the cluster, the model or the batch, and for memory that no
        schedule can keep to.
        """
        self._check(cluster, degrees)
        if memory is not None and not is_amount(memory):
            raise CostError(f"{self.name}: memory={memory!r}: {AMOUNT}")
        microbatches = degrees.microbatches(self.batch)
        model = self.price(cluster.hardware, degrees.expert, degrees.microbatch_size)
        made: dict[int, Layer] = {}

        def layer(one: PricedLayer) -> Layer:
            return made.setdefault(id(one), one.layer(cluster, degrees, self.state))

        return Workload(
            tuple(map(layer, model.layers)),
            degrees.ranks,
            microbatches,
            tuple(tuple(map(layer, tower)) for tower in model.towers),
            model.batch_wide,
            latency=cluster.link(degrees.devices).hop_s if degrees.ranks > 1 else 0.0,
            memory=cluster.memory if memory is None else memory,
            name=self.name,
        )

    def in_degrees(
        self,
        cluster: Cluster,
        ranks: int,
        data: int | None = None,
        expert: int = 1,
        microbatch_size: int | None = None,
        memory: float | None = None,
    ) -> Workload:
        """The same with degrees by number: as many pipelines as fill the cluster, and microbatches of one sequence."""
        _checked(cluster)
        size = (self.microbatch_size or 1) if microbatch_size is None else microbatch_size
        if type(ranks) is not int or ranks < 1 or (data is None and cluster.devices % ranks):
            possible = ", ".join(map(str, divisors(cluster.devices)))
            raise CostError(
                f"{self.name} on {cluster.devices} devices: ranks={ranks!r} is not possible; possible are {possible}"
            )
        return self.at(
            cluster, Degrees(ranks, cluster.devices // ranks if data is None else data, expert, size), memory
        )

    def degrees(
        self,
        cluster: Cluster,
        *,
        ranks: int | None = None,
        data: int | None = None,
        expert: int | None = None,
        microbatch_size: int | None = None,
    ) -> list[Degrees]:
        """What can be asked for on all devices of a cluster; what is given is fixed.

        Raises CostError when there is nothing.
        """
        wanted = {"ranks": ranks, "data": data, "expert": expert}
        for name, value in (*wanted.items(), ("microbatch_size", microbatch_size)):
            if value is not None and (type(value) is not int or value < 1):
                raise CostError(f"{self.name}: {name}={value!r}: give a whole number, 1 or more, or None to search it")
        sizes = _SIZES if self.microbatch_size is None else (self.microbatch_size,)
        left = list(self._possible(_checked(cluster), sizes if microbatch_size is None else (microbatch_size,)))
        for name, value in wanted.items():
            if value is not None and not (kept := [one for one in left if getattr(one, name) == value]):
                possible = ", ".join(map(str, sorted({getattr(one, name) for one in left})))
                where = f"{self.name} on {cluster.devices} devices"
                raise CostError(f"{where}: {name}={value!r} is not possible; possible are {possible}")
            left = left if value is None else kept
        if not left:
            raise CostError(
                f"{self.name}: a batch of {self.batch} sequences is not shared equally on {cluster.devices} devices by "
                "any degrees: give a batch that is a multiple of the devices"
            )
        return left

    def _possible(self, cluster: Cluster, sizes: tuple[int, ...]) -> Iterator[Degrees]:
        for ranks in divisors(cluster.devices):
            data = cluster.devices // ranks
            for expert in divisors(data) if self.experts else (1,):
                if self.experts and self.experts % expert:
                    continue
                for size in sizes:
                    if self.batch % (data * size) == 0:
                        yield Degrees(ranks, data, expert, size)

    def _check(self, cluster: Cluster, degrees: Degrees) -> None:
        where = f"{self.name} on {_checked(cluster).devices} devices"
        if degrees.devices != cluster.devices:
            raise CostError(
                f"{where}: {degrees.ranks} ranks x {degrees.data} pipelines are {degrees.devices}; give data="
                f"{cluster.devices // degrees.ranks}, or another number of ranks"
            )
        if degrees.expert > 1 and (not self.experts or self.experts % degrees.expert):
            possible = ", ".join(map(str, divisors(max(1, self.experts))))
            raise CostError(
                f"{where}: expert={degrees.expert} ranks cannot share {self.experts} experts equally; possible are "
                f"{possible}"
            )
        if self.microbatch_size not in (None, degrees.microbatch_size):
            raise CostError(
                f"{where}: the examples of its layers have {self.microbatch_size} sequences: give microbatch_size="
                f"{self.microbatch_size}, or an annopipe.ModelSpec that makes them for any"
            )


def _checked(cluster: object) -> Cluster:
    if not isinstance(cluster, Cluster):
        raise CostError(
            f"cluster is {cluster!r}: give an annopipe.Cluster, as annopipe.Cluster.from_toml(path) reads it"
        )
    return cluster
