"""Configurations of the MoE job: TOML files that name a model, where it runs, and what is compared on it.

kind = "paced"                 # paced: computation is waiting; real: it computes; simulated: nothing runs
pp = 2                         # pipeline ranks, ranks that share experts, and copies of all these
ep = 2
dp = 1
microbatches = 8               # of a step, for each pipeline
rounds = 3                     # repetitions, in alternation
schedules = ["1f1b", "zbv", "dualpipev"]
eager = ["1f1b", "zbv", "dualpipev"]         # on torch.distributed.pipelining
attached = false               # those once more, with ap.attach
policies = ["sequential", "auto"]            # for pairs of a forward and a backward
nano_batches = [1, 2]
nano_batched = ["dualpipev"]   # the schedules that nano-batches are tried on; all if left out
compile = [false]
skew = [1.0, 1.5]              # rows of the busiest expert rank over its even share

[model]                        # paced: layers, rows, width, top_k, ratio, head; real: without the last two
layers = 2                     # simulated: name, sequence, microbatch_size

[network]                      # paced and real: kind = auto, namespaces, emulated or loopback; rate
rate = "100mbit"

[cluster]                      # simulated: machine and memory; or file, a description that ap.Cluster reads
machine = "h100"
memory = 80e9
"""

import dataclasses
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from annopipe.costs.cluster import Cluster
from annopipe.costs.machines import machine
from annopipe.errors import AnnopipeError, CostError, ScheduleError
from annopipe.scheduling.library import entry, schedule_spec
from annopipe.toml_files import parse_toml, read_toml, refuse_unknown
from benchmarks.moe.case import NETWORKS, MoeCase
from benchmarks.moe.variant import EAGER, REORDERING, SEQUENTIAL
from benchmarks.netlab.units import rate_bytes_per_s

__all__ = ["SHIPPED", "Config", "Kind"]

Kind = Literal["paced", "real", "simulated"]
_NETWORK = ("kind", "rate")
_MODEL: Mapping[str, Mapping[str, type]] = {
    "paced": {"layers": int, "rows": int, "width": int, "top_k": int, "ratio": float, "head": float},
    "real": {"layers": int, "rows": int, "width": int, "top_k": int},
    "simulated": {"name": str, "sequence": int, "microbatch_size": int},
}
_CLUSTER: Mapping[str, type] = {"machine": str, "memory": float, "file": str}
_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
# The full set, in its order; "quick" is apart.
SHIPPED = (
    *("tiny", "tiny-pp4", "tiny-dp2", "medium"),
    *("deepseek-v3-16b", "deepseek-v3-671b", "qwen3-30b-a3b", "mixtral-8x7b"),
)


@dataclasses.dataclass(frozen=True)
class Config:
    """A configuration; the module's docstring shows the fields. Tuples where TOML has lists."""

    name: str
    kind: Kind = "paced"
    pp: int = 2
    ep: int = 2
    dp: int = 1
    microbatches: int = 8
    rounds: int = 3
    schedules: tuple[str, ...] = ("dualpipev",)
    eager: tuple[str, ...] = EAGER
    attached: bool = False
    policies: tuple[str, ...] = (SEQUENTIAL, "auto")
    nano_batches: tuple[int, ...] = (1,)
    nano_batched: tuple[str, ...] | None = None
    compile: tuple[bool, ...] = (False,)
    skew: tuple[float, ...] = (1.0,)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    network: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cluster: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_fields(self)
        for name, least in (("pp", 1), ("ep", 1), ("dp", 1), ("microbatches", 1), ("rounds", 1)):
            if getattr(self, name) < least:
                raise self.error(f"{name}={getattr(self, name)}: give {least} or more")
        _check_schedules(self)
        _check_lists(self)
        _check_room(self)

    def error(self, text: str) -> CostError:
        """What is wrong, with the configuration's name."""
        return CostError(f"configuration {self.name}: {text}")

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.pp * self.ep * self.dp

    @classmethod
    def named(cls, given: str) -> "Config":
        """A shipped one by its name, or that of a file.

        Raises CostError for a name that is neither, a field that is unknown or no such value, and combinations that
        cannot be.

        >>> Config.named("deepseek-v3-16b").model["name"]
        'deepseek-v3-16b'
        """
        if given.endswith(".toml"):
            return cls.of_table(Path(given).stem, read_toml(given, CostError), Path(given).parent)
        source = files("benchmarks.moe.configs").joinpath(f"{given}.toml")
        if "/" in given or not source.is_file():
            raise CostError(
                f"there is no configuration {given!r}: give quick, {', '.join(SHIPPED)}, or the path of a .toml file"
            )
        return cls.of_table(given, parse_toml(source.read_text(encoding="utf-8")))

    @classmethod
    def of_table(cls, name: str, table: Mapping[str, Any], folder: Path | None = None) -> "Config":
        """Of what a TOML file holds; paths in it are from that folder.

        >>> Config.of_table("mine", {"pp": 4, "skew": [1.0, 1.5]}).skew
        (1.0, 1.5)
        """
        known = [field.name for field in dataclasses.fields(cls) if field.name != "name"]
        refuse_unknown(table, known, f"configuration {name}", CostError)
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        cluster = given.get("cluster")
        if folder is not None and isinstance(cluster, Mapping) and isinstance(cluster.get("file"), str):
            given["cluster"] = {**cluster, "file": str(folder / cluster["file"])}
        return cls(name, **given)

    def case(self, network: Any) -> MoeCase:
        """The model on its ranks, without anything that runs on it."""
        return MoeCase(
            pipeline_ranks=self.pp,
            expert_ranks=self.ep,
            data_ranks=self.dp,
            microbatches=self.microbatches,
            paced=self.kind == "paced",
            network=network,
            rate_bytes_per_s=rate_bytes_per_s(self.network.get("rate", "100mbit")),
            rounds=self.rounds,
            **self.model,
        )

    def cluster_of(self) -> Cluster:
        """The cluster of a simulated one, with as many devices as there are ranks."""
        if "file" in self.cluster:
            found = Cluster.from_toml(self.cluster["file"])
            if found.devices != self.ranks:
                raise self.error(f"the cluster has {found.devices} devices, and pp x ep x dp is {self.ranks}")
            return found
        name = self.cluster["machine"]
        return Cluster(self.ranks, machine(name), self.cluster["memory"], f"{self.ranks} {name}")


def _check_fields(config: Config) -> None:
    if config.kind not in get_args(Kind):
        raise config.error(f"kind is {config.kind!r}: give paced, real or simulated")
    for name in ("pp", "ep", "dp", "microbatches", "rounds"):
        _typed(config, name, getattr(config, name), int)
    _typed(config, "attached", config.attached, bool)
    kinds = {"schedules": str, "eager": str, "policies": str, "nano_batches": int, "compile": bool, "skew": float}
    for name, kind in ({**kinds, "nano_batched": str} if config.nano_batched is not None else kinds).items():
        values = getattr(config, name)
        if not isinstance(values, tuple):
            raise config.error(f"{name} is {values!r}: give a list")
        for value in values:
            _typed(config, f"an entry of {name}", value, kind)
        if len(set(values)) < len(values):
            raise config.error(f"{name} names something twice: {', '.join(map(str, values))}")
    tables: dict[str, Mapping[str, type]] = {"model": _MODEL[config.kind]}
    tables["network"] = {} if config.kind == "simulated" else dict.fromkeys(_NETWORK, str)
    tables["cluster"] = _CLUSTER if config.kind == "simulated" else {}
    for name, known in tables.items():
        table = getattr(config, name)
        if not isinstance(table, Mapping):
            raise config.error(f"{name} is {table!r}: give a table, [{name}]")
        if table and not known:
            raise config.error(f"[{name}] means nothing where kind is {config.kind}: leave it out")
        refuse_unknown(table, known, f"configuration {config.name}, [{name}] of kind {config.kind}", CostError)
        for key, value in table.items():
            _typed(config, f"{name}.{key}", value, known[key])


def _typed(config: Config, name: str, value: object, kind: type) -> None:
    right = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not right or (kind is float and not 0.0 < float(value) < float("inf")):  # type: ignore[arg-type]
        above = ", above 0" if kind is float else ""
        raise config.error(f"{name} is {value!r}: give {_KINDS[kind]}{above}")


def _check_schedules(config: Config) -> None:
    for name in (*config.schedules, *config.eager):
        try:
            found = schedule_spec(name, config.pp, config.microbatches)
        except ScheduleError as error:
            raise config.error(f"schedules: {error}") from error
        if entry(name).name != name:
            raise config.error(f"schedules: {name!r} is another name of {entry(name).name}: give that")
        if name in ("forward-only", "distmm-pipe"):
            raise config.error(f"schedules: {name} does not train a chain of layers: leave it out")
        if config.kind != "simulated" and found.placement.copies > 1:
            raise config.error(f"schedules: {name} has two copies of the model, which only simulated ones have here")
        if config.kind != "simulated" and found.placement.stages > 2 * config.pp:
            raise config.error(f"schedules: {name} has more than two stages on a rank, which only simulated ones have")
    for name in config.eager:
        if name not in EAGER:
            raise config.error(f"eager: the eager runtime has no {name!r} here; it has {', '.join(EAGER)}")
    turns = max(1, config.microbatches // config.pp)
    if "dualpipev" in config.eager and config.microbatches < 2 * config.pp:
        raise config.error(f"eager: PyTorch's DualPipeV needs {2 * config.pp} microbatches or more")
    if "interleaved-1f1b" in config.eager and config.microbatches % turns:
        raise config.error(f"eager: PyTorch's interleaved 1F1B needs microbatches in {turns} equal turns")
    for name in config.nano_batched or ():
        if name not in config.schedules:
            raise config.error(f"nano_batched: {name!r} is not among the schedules")
    if config.attached and not config.eager:
        raise config.error("attached: there is no eager schedule to attach to")
    if not config.schedules and not config.eager:
        raise config.error("there is nothing to run: give schedules or eager ones")


def _check_lists(config: Config) -> None:
    for name in ("policies", "nano_batches", "compile", "skew"):
        if config.schedules and not getattr(config, name):
            raise config.error(f"{name} is empty: give one or more")
    for policy in config.policies:
        known = policy in (SEQUENTIAL, *REORDERING) or any(mark in policy for mark in ".|;")
        if not known:
            raise config.error(
                f"policies: there is no {policy!r}: {', '.join((SEQUENTIAL, *REORDERING))}, or a pattern"
            )
        if config.kind == "simulated" and policy not in (SEQUENTIAL, "auto"):
            raise config.error(
                f"policies: pairs of a simulated model are ordered as auto or sequential, not {policy!r}"
            )
    if min(config.nano_batches, default=1) < 1 or min(config.skew, default=1.0) < 1.0:
        raise config.error("nano_batches and skew are 1 or more: 1 is none, and even routing")
    if 1.0 not in config.skew and config.skew:
        raise config.error("skew: even routing, 1.0, is what the others are compared with: put it in")
    if max(config.nano_batches, default=1) > 1 and set(config.policies) <= {SEQUENTIAL}:
        raise config.error("nano_batches: lanes gain where they are reordered: add a policy beside sequential")


def _check_room(config: Config) -> None:
    if config.kind == "simulated":
        if ("file" in config.cluster) == ("machine" in config.cluster):
            raise config.error("[cluster] has either machine and memory, or file: give one of them")
        if "machine" in config.cluster and "memory" not in config.cluster:
            raise config.error("[cluster] has no memory: give the bytes of one device")
        if "name" not in config.model:
            raise config.error("[model] has no name: give one that annopipe tune --model knows")
        if config.attached:
            raise config.error("attached: nothing runs where kind is simulated; leave it out")
        try:
            config.cluster_of()
        except CostError as error:
            raise error if str(error).startswith("configuration ") else config.error(str(error)) from error
        return
    kind = config.network.get("kind", "auto")
    if kind not in ("auto", *NETWORKS):
        raise config.error(f"network.kind is {kind!r}: give auto, {', '.join(NETWORKS)}")
    try:
        config.case("loopback")
    except AnnopipeError as error:
        raise config.error(str(error)) from error
