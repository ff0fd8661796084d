"""What every presentation of a schedule's timeline says first: its key numbers, in words."""

from annopipe.simulation.ranks.pictured import Pictured
from annopipe.simulation.wording import amount_text, seconds_text

__all__ = ["key_numbers"]

# Below this share of the makespan a difference is rounding.
_NEGLIGIBLE = 1e-9


def key_numbers(timeline: Pictured) -> list[tuple[str, str]]:
    """Makespan, bubble, peak memory and exposed communication, by name; the window where it is not the makespan."""
    numbers = [("makespan", seconds_text(timeline.makespan))]
    if timeline.makespan - timeline.window > _NEGLIGIBLE * timeline.makespan:
        numbers.append(("window", seconds_text(timeline.window)))
    numbers += [("bubble", f"{timeline.bubble:.1%}"), ("peak memory", amount_text(timeline.peak_memory))]
    if timeline.messages or timeline.exposed_comm:
        numbers.append(("exposed communication", seconds_text(timeline.exposed_comm)))
    return numbers
