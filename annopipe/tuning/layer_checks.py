"""What is wrong with the numbers of a layer, said before a search uses them."""

import math
from collections.abc import Iterator
from numbers import Real

from annopipe.tuning.layers import Layer, Piece, Pieces, Recompute

__all__ = ["AMOUNT", "LARGEST", "is_amount", "layer_problems"]

LARGEST = 1e60  # sums and squares of so much are numbers still
AMOUNT = f"give a number that is finite and not negative, at most {LARGEST:g}"
_AMOUNTS = ("F", "I", "W", "activation", "comm", "parameters", "reduce")
_OPTIONAL = ("kept_for_weight", "message")
_PRECISION = 1e-6  # of times that are said twice


def is_amount(value: object) -> bool:
    """Whether it is a number for a time or an amount of memory.

    >>> is_amount(0.5), is_amount(float("nan")), is_amount(True), is_amount(10**400)
    (True, False, False, False)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return bool(0 <= (value if isinstance(value, int) else float(value)) <= LARGEST)


def layer_problems(layer: Layer, where: str) -> Iterator[str]:
    """What is wrong; each check takes for granted what those before it found.

    >>> next(layer_problems(Layer(1.0, -1.0, 1.0), "layer 3"))
    'I of layer 3 is -1.0: give a number that is finite and not negative, at most 1e+60'
    """
    given = {name: getattr(layer, name) for name in _AMOUNTS}
    given |= {name: getattr(layer, name) for name in _OPTIONAL if getattr(layer, name) is not None}
    again, pieces = layer.recompute, layer.pieces
    if again is not None:
        if not isinstance(again, Recompute):
            yield f"recompute of {where} is {again!r}: give an annopipe.Recompute, or None"
            return
        given |= {"recompute.saves": again.saves, "recompute.costs": again.costs}
        if again.kept_for_weight is not None:
            given["recompute.kept_for_weight"] = again.kept_for_weight
    for name, value in given.items():
        if not is_amount(value):
            yield f"{name} of {where} is {value!r}: {AMOUNT}"
    if again is not None:
        yield from _piece_problems(again.backward, f"recompute.backward of {where}")
    if pieces is None:
        return
    if not isinstance(pieces, Pieces):
        yield f"pieces of {where} is {pieces!r}: give an annopipe.Pieces, or None"
        return
    yield from _piece_problems(pieces.forward, f"pieces.forward of {where}")
    yield from _piece_problems(pieces.backward, f"pieces.backward of {where}")
    for name, said in zip(("F", "I", "W", "comm"), (*pieces.times, pieces.comm), strict=True):
        if not math.isclose(given[name], said, rel_tol=_PRECISION, abs_tol=_PRECISION * layer.work):
            yield (
                f"{name} of {where} is {given[name]:g}, and its pieces add up to {said:g}: give equal times, as "
                "annopipe.Layer.of_pieces does"
            )


def _piece_problems(pieces: object, where: str) -> Iterator[str]:
    if not isinstance(pieces, tuple) or not all(isinstance(piece, Piece) for piece in pieces):
        yield f"{where} is {pieces!r}: give a tuple of annopipe.Piece"
        return
    for piece in pieces:
        if not all(map(is_amount, (piece.compute, piece.beside, piece.weight, piece.comm))):
            yield f"{where} has {piece}: for each time {AMOUNT}"
