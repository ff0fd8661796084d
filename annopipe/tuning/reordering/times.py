"""When everything runs in some orders."""

from dataclasses import dataclass

from annopipe.tuning.reordering.problem import Orders, Problem

__all__ = ["Times", "times"]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Times:
    """When everything runs.

    Attributes:
        makespan: of the step.
        begins: of each computation, by number.
    """

    makespan: float
    begins: list[float]


def times(problem: Problem, orders: Orders) -> Times | None:
    """As `simulation.ranks.engine` has it, in half the time; None where ranks wait for each other."""
    durations, inputs, sends = problem.durations, problem.inputs, problem.sends
    link, latencies = problem.link, problem.latencies
    begins, ends = [0.0] * len(durations), [-1.0] * len(durations)
    waiting = [-1] * len(durations)  # by what is missing: the rank that waits
    free = [0.0] * len(latencies)
    place, clock = [0] * len(orders), [0.0] * len(orders)
    ready = [*range(len(orders))]
    while ready:
        rank = ready.pop()
        order, now, step = orders[rank], clock[rank], place[rank]
        while step < len(order):
            number = order[step]
            for need in inputs[number]:
                end = ends[need]
                if end > now:
                    now = end
                elif end < 0.0:
                    break
            else:
                begins[number] = now
                ends[number] = now = now + durations[number]
                for message in sends[number]:
                    line = link[message]
                    free[line] = begin = max(free[line], now) + durations[message]
                    ends[message] = begin + latencies[line]
                    if waiting[message] >= 0:
                        ready.append(waiting[message])
                step += 1
                continue
            waiting[need] = rank
            break
        place[rank], clock[rank] = step, now
    if place != [*map(len, orders)]:
        return None
    return Times(max(clock, default=0.0), begins)
