"""A slow, obvious reference: one graph of all actions, and the longest path to each of them, in exact fractions.

An edge (before, after, gap) says that `after` starts at least `gap` after the start of `before`.
"""

from fractions import Fraction
from functools import cache
from itertools import pairwise

from annopipe.simulation.ranks.programs import RankPrograms


def longest_paths(programs: RankPrograms) -> dict[int, tuple[Fraction, Fraction]]:
    """Start and end of each action; a message ends when it arrives."""
    whole = {part: number for number, parts in programs.parts.items() for part in parts}
    edges: dict[int, list[tuple[int, Fraction]]] = {n: [] for program in programs.ranks for n in program}

    def time(number: int) -> Fraction:
        return Fraction(programs.durations[number])

    def is_message(number: int) -> bool:
        return programs.link[number] >= 0

    def until_end(number: int) -> Fraction:
        return time(number) + (Fraction(programs.latencies[programs.link[number]]) if is_message(number) else 0)

    for program in programs.ranks:
        last = None
        for number in program:
            if last is not None:
                edges[number].append((last, time(last)))
            if not is_message(number):
                last = number
        for line in range(len(programs.links)):
            edges_of_link = pairwise(n for n in program if programs.link[n] == line)
            for before, after in edges_of_link:
                edges[after].append((before, time(before)))
        for number in program:
            for single in programs.parts.get(number, (number,)):
                inputs = (programs.first[single], programs.second[single], *programs.more.get(single, ()))
                for before in (whole.get(n, n) for n in inputs if n >= 0):
                    edges[number].append((before, until_end(before)))

    @cache
    def start(number: int) -> Fraction:
        return max((start(before) + gap for before, gap in edges[number]), default=Fraction(0))

    for program in programs.ranks:  # from the front, so that the recursion stays shallow
        for number in program:
            start(number)
    return {number: (start(number), start(number) + until_end(number)) for number in edges}
