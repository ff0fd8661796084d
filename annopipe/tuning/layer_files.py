"""One layer of a workload as an inline table of TOML, and back; pieces are lists of compute, beside, weight, comm.

{ F = 2.0, I = 2.0, W = 1.0, pieces = { forward = [[1.0, 0.0, 0.0, 0.5], [1.0]], backward = [[2.0, 0.0, 1.0]] } }
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from annopipe.errors import CostError
from annopipe.toml_files import refuse_unknown
from annopipe.tuning.layer_checks import is_amount
from annopipe.tuning.layers import Layer, Piece, Pieces, Recompute

__all__ = ["LAYER_FIELDS", "layer_from", "layer_table"]

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Layer)}
LAYER_FIELDS = tuple(_DEFAULTS)
_DIRECTIONS = ("forward", "backward")
_WIDTH = len(dataclasses.fields(Piece))


def layer_table(layer: Layer) -> dict[str, Any]:
    """What of a layer is not as it would be without being said.

    >>> layer_table(Layer(1.0, 1.0, 0.5, recompute=Recompute(0.5, 0.25)))
    {'F': 1.0, 'I': 1.0, 'W': 0.5, 'recompute': {'saves': 0.5, 'costs': 0.25}}
    """
    found = {name: getattr(layer, name) for name in LAYER_FIELDS if getattr(layer, name) != _DEFAULTS[name]}
    if layer.recompute is not None:
        again = {field.name: getattr(layer.recompute, field.name) for field in dataclasses.fields(Recompute)}
        again["backward"] = _lists(layer.recompute.backward)
        found["recompute"] = {name: value for name, value in again.items() if value not in (None, [])}
    if layer.pieces is not None:
        found["pieces"] = {name: _lists(getattr(layer.pieces, name)) for name in _DIRECTIONS}
    return found


def layer_from(given: Mapping[str, Any], where: str) -> Layer:
    """The layer that a table describes.

    Raises CostError for an unknown field, a missing one, and one of a wrong kind.

    >>> layer_from({"F": 1.0, "I": 1.0, "W": 0.5}, "here").work
    2.5
    """
    refuse_unknown(given, ["repeat", *LAYER_FIELDS], where, CostError)
    found = dict(given)
    missing = [name for name in ("F", "I", "W") if name not in found]
    if missing:
        raise CostError(f"{where}: a layer has no {missing[0]}: give its time")
    if "recompute" in found:
        found["recompute"] = _recompute(found["recompute"], f"{where}, recompute")
    if "pieces" in found:
        table = _table(found["pieces"], f"{where}, pieces", ("forward", "backward"), ("forward", "backward"))
        found["pieces"] = Pieces(
            *(_pieces(table[name], f"{where}, pieces, {name}") for name in ("forward", "backward"))
        )
    return Layer(**found)


def _lists(pieces: Sequence[Piece]) -> list[list[float]]:
    return [list(dataclasses.astuple(piece)) for piece in pieces]


def _recompute(given: object, where: str) -> Recompute:
    found = dict(_table(given, where, [field.name for field in dataclasses.fields(Recompute)], ("saves", "costs")))
    if "backward" in found:
        found["backward"] = _pieces(found["backward"], f"{where}, backward")
    return Recompute(**found)


def _table(given: object, where: str, fields: Sequence[str], needed: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise CostError(f"{where} is {given!r}: give a table of fields")
    refuse_unknown(given, fields, where, CostError)
    if any(name not in given for name in needed):
        raise CostError(f"{where}: give both {' and '.join(needed)}")
    return given


def _pieces(given: object, where: str) -> tuple[Piece, ...]:
    found = []
    for entry in given if isinstance(given, list) else [None]:
        numbers = entry if isinstance(entry, list) and 1 <= len(entry) <= _WIDTH else [None]
        if not all(map(is_amount, numbers)):
            raise CostError(
                f"{where} is {given!r}: give lists of times, not negative: compute, and if need be beside, weight, comm"
            )
        found.append(Piece(*numbers))
    return tuple(found)
