"""What the actions of a layout's stages take and keep: the costs that schedules are generated for and simulated at."""

import math
from collections.abc import Callable, Sequence

from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.actions import Action
from annopipe.tuning.layers import Layer
from annopipe.tuning.layout import Layout
from annopipe.tuning.pairing import Lane, lanes_seconds
from annopipe.tuning.workload import Workload

__all__ = ["action_costs"]


def action_costs(work: Workload, layout: Layout) -> ActionCosts:
    """The costs of a layout.

    Communication inside a layer adds to F, I and B, where nothing runs beside it. What runs as several lanes, as a
    forward with a backward or as nano-batches, takes what their order takes: see ``annopipe.tuning.pairing``.

    >>> from annopipe.scheduling import placement
    >>> from annopipe.tuning.layers import Layer
    >>> work = Workload((Layer(1.0, 1.0, 0.5, comm=0.5),) * 4, ranks=2, microbatches=4)
    >>> costs = action_costs(work, Layout(placement.linear(2), ((0, 2), (2, 4))))
    >>> costs.F, costs.duration(Action.parse("(0F1;1B0)OVERLAP_F_B"))
    ([3.0, 3.0], 5.0)
    """
    placement, speeds = layout.placement, work.speeds
    stages = [layout.layers(work, stage) for stage in range(placement.stages)]
    speed = [speeds[rank] for rank in placement.rank_of]
    comm = [math.fsum([layer.comm for layer in layers]) for layers in stages]

    def per_stage(name: str, divided: Sequence[float]) -> list[float]:
        totals = [math.fsum([getattr(layer, name) for layer in layers]) for layers in stages]
        return [total / by for total, by in zip(totals, divided, strict=True)]

    known: dict[tuple[tuple[str, int, int], ...], float] = {}

    def seconds_of(action: Action) -> float:
        parts = tuple([(part.kind, part.stage, part.nano_batches) for part in action.singles])
        if parts not in known:
            lanes = tuple(
                [Lane(kind, stages[stage], 1.0 / count) for kind, stage, count in parts for _ in range(count)]
            )
            known[parts] = lanes_seconds(lanes, speed[parts[0][1]])
        return known[parts]

    def pair_exposed(forward: int, backward: int) -> float:
        own = math.fsum([layer.F for layer in stages[forward]])
        other = math.fsum([layer.I + layer.W for layer in stages[backward]])
        pair = (Lane("F", stages[forward]), Lane("B", stages[backward]))
        return max(0.0, lanes_seconds(pair, speed[forward]) - (own + other) / speed[forward])

    forward, backward = (
        [time + sent for time, sent in zip(per_stage(kind, speed), comm, strict=True)] for kind in ("F", "I")
    )
    exposed: dict[str, Sequence[float] | Callable[[int, int], float]] = {}
    if work.has_comm:
        exposed = {"F": comm, "I": comm, "B": comm, "FB": pair_exposed}
    one = [1.0] * placement.stages
    return ActionCosts(
        F=forward,
        I=backward,
        W=per_stage("W", speed),
        overlap=seconds_of if work.has_comm else None,
        overlap_by_stage=True,
        send=[work.message if layers[-1].message is None else layers[-1].message for layers in stages],
        latency=work.latency,
        activation=per_stage("activation", one),
        kept_for_weight=list(map(_kept_share, stages)),
        parameters=per_stage("parameters", one),
        exposed=exposed,
    )


def _kept_share(layers: Sequence[Layer]) -> float:
    """What stays between backward-input and backward-weight, as a share of the activation."""
    activation = math.fsum([layer.activation for layer in layers])
    return math.fsum([layer.kept for layer in layers]) / activation if activation else 1.0
