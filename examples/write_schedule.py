"""Write a schedule: by hand, as rules, and with an operation of your own. Needs no torch.

    python -m examples.write_schedule

Rules are enough for most: each rank, as it becomes free, takes the most urgent action that is ready and that its limits
allow. The schedule here is for two stages a rank, whose first rank has both ends of the model. Weight gradients, which
nobody waits for, fill what would be bubbles, within a limit of memory.
"""

import tempfile
from pathlib import Path

import annopipe as ap
from annopipe.scheduling.shares import shared_out
from annopipe.simulation import ScheduleTimeline
from annopipe.simulation.ranks.comparison import compare

RANKS, MICROBATCHES = 4, 8
MODEL = ap.costs.table(F=1.0, I=1.1, W=0.9, latency=0.02)  # of one rank's share of the model


def by_hand() -> ap.Schedule:
    """Every action written down, a list per rank; a text such as "1B0" is the backward of microbatch 0 on stage 1."""
    rows = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    return ap.Schedule.of(ap.placement.linear(ranks=2), 2, rows, name="by hand")


def folded(memory: float) -> ap.ScheduleSpec:
    """Stages down the ranks and back up, what the rank before waits for first, weight gradients last."""
    placement = ap.placement.v(RANKS)
    return ap.ScheduleSpec(
        placement,
        MICROBATCHES,
        priority=("I", "F", "W"),
        memory=memory,
        costs=shared_out(MODEL, placement),
        name=f"folded, memory {memory:g}",
    )


def simulated(schedule: ap.Schedule) -> ScheduleTimeline:
    """With the costs of the whole model, however many stages a rank has."""
    return ap.simulate(schedule, shared_out(MODEL, schedule.placement))


def main() -> None:
    """Check them, say why one decides as it does, compare them with what is there, and hand one to PyTorch."""
    by_hand().check()
    specs = [folded(memory) for memory in (3.0, 4.0, 5.0)]
    for spec in specs:
        spec.build().check()
    print(specs[0].explain(rank=0, step=11), end="\n\n")

    offload = ap.Operation("OFFLOAD", after="F", time=0.1, resource="copy", memory=-0.5)
    fetch = ap.Operation("FETCH", before="B", time=0.1, resource="copy", memory=0.5)
    with_copies = specs[2].varied(operations=(offload, fetch), name="folded, offloaded")

    found = {name: simulated(ap.schedule(name, RANKS, MICROBATCHES)) for name in ("1f1b", "zbv")}
    found |= {spec.name: simulated(spec.build()) for spec in (*specs, with_copies)}
    print(compare(found))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "folded.csv")
        specs[1].build().to_csv(path)  # the format of torch.distributed.pipelining
        same = ap.Schedule.from_csv(path, specs[1].placement) == specs[1].build()
        print(f"\nread again from its CSV, the same: {same}")


if __name__ == "__main__":
    main()
