"""Rates and sizes as `tc` writes them, checked before anything is set up.

>>> rate_bytes_per_s("400mbit")
50000000.0
>>> size_bytes("16kb")
16384
"""

import re

from benchmarks.netlab.errors import NetLabError

_RATE_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SIZE_BYTES = {"b": 1, "kb": 1024, "mb": 1024**2}


def rate_bytes_per_s(rate: str) -> float:
    """Bytes per second of a rate such as "400mbit"; kbit, mbit and gbit count in thousands."""
    number, unit = _number_and_unit("rate", rate, _RATE_BITS, "400mbit")
    return number * _RATE_BITS[unit] / 8


def size_bytes(size: str) -> int:
    """Bytes of a size such as "16kb"; kb and mb count in 1024s, as tc does."""
    number, unit = _number_and_unit("burst", size, _SIZE_BYTES, "16kb")
    return int(number * _SIZE_BYTES[unit])


def _number_and_unit(what: str, text: str, units: dict[str, float] | dict[str, int], example: str) -> tuple[float, str]:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text) if isinstance(text, str) else None
    if match is None or match[2] not in units or not float(match[1]):
        raise NetLabError(f"{what}={text!r}: give a positive number and one of {', '.join(units)}, such as {example!r}")
    return float(match[1]), match[2]
