"""What of a configuration's lists is run: their product without what means nothing, and what was left out, and why."""

import dataclasses
import itertools
from collections.abc import Iterator

from benchmarks.eager_names import runs_over_gloo
from benchmarks.moe.config import Config
from benchmarks.moe.variant import SEQUENTIAL, Variant, has_pairs

__all__ = ["Grid", "grid"]


@dataclasses.dataclass(frozen=True)
class Grid:
    """The rows of a configuration, and sentences about what it has none of."""

    variants: tuple[Variant, ...]
    left_out: tuple[str, ...]


def grid(config: Config) -> Grid:
    """The rows: ours, then the eager ones, then those once more that are attached; for each skew.

    >>> for variant in grid(Config.of_table("small", {"schedules": ["zbv", "dualpipev"], "eager": ["zbv"]})).variants:
    ...     print(variant)
    annopipe zbv
    annopipe dualpipev
    annopipe dualpipev, sequential
    annopipe dualpipev, auto
    eager zbv
    """
    found = []
    for skew in config.skew:
        found += [variant.without(skew=skew) for variant in _ours(config)]
        found += [Variant("eager", name, skew=skew) for name in _eager(config)]
        if config.attached:
            found += [Variant("attached", name, _attached_policy(config, name), skew=skew) for name in config.eager]
    return Grid(tuple(dict.fromkeys(found)), tuple(_left_out(config)))


def _ours(config: Config) -> Iterator[Variant]:
    for name, compiled in itertools.product(config.schedules, config.compile):
        apart = () if config.kind == "simulated" else (None,)
        policies = (*apart, *config.policies) if has_pairs(name) else (None,)
        yield from (Variant("annopipe", name, policy, 1, compiled) for policy in policies)
        for policy, parts in itertools.product(_reordering(config), config.nano_batches):
            if parts > 1 and name in (config.schedules if config.nano_batched is None else config.nano_batched):
                yield Variant("annopipe", name, policy, parts, compiled)


def _eager(config: Config) -> list[str]:
    return [name for name in config.eager if config.kind == "simulated" or runs_over_gloo(name, config.pp)]


def _attached_policy(config: Config, name: str) -> str | None:
    return config.policies[-1] if has_pairs(name) else None


def _reordering(config: Config) -> tuple[str, ...]:
    return tuple(policy for policy in config.policies if policy != SEQUENTIAL)


def _left_out(config: Config) -> Iterator[str]:
    if alone := [name for name in config.schedules if not has_pairs(name)]:
        yield f"policies order pairs, of which {', '.join(alone)} have none: one row each"
    if max(config.nano_batches, default=1) > 1:
        yield f"nano-batches: only under policies that reorder ({', '.join(_reordering(config))})"
        if config.nano_batched is not None and set(config.nano_batched) < set(config.schedules):
            yield f"nano-batches: tried on {', '.join(config.nano_batched)} only, as the configuration says"
    if config.kind == "paced":
        yield "compile: paced computation takes its known time, compiled or not"
    if config.kind == "real":
        yield "skew and nano-batches: measured where computation is paced; pipelines of more than one rank, too"
    if config.kind == "simulated":
        yield "eager: priced kernel by kernel, nothing fused; compiled: elementwise operations fused"
        yield "pairs that run apart take what sequential ones take: one row for both"
    if missing := [name for name in config.eager if name not in _eager(config)]:
        yield f"eager {', '.join(missing)}: this PyTorch sends from a rank to itself there, which gloo cannot do"
    if config.eager and any(config.compile):
        yield "eager: not compiled"
