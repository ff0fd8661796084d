"""How numbers and names are written for people."""

import re
from collections.abc import Collection, Iterable

__all__ = ["amount_text", "clip", "initials", "one_line", "place_text", "seconds_text", "shorten"]

# Largest first: the first unit that the value reaches is used.
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def seconds_text(seconds: float) -> str:
    """Write a time with the unit that fits and four significant digits.

    >>> seconds_text(0.0123456), seconds_text(85e-6), seconds_text(2.0), seconds_text(0.0)
    ('12.35 ms', '85 us', '2 s', '0 s')
    """
    if seconds == 0:
        return "0 s"
    for scale, unit in _UNITS:
        # A value that rounds up to 1000 of the smaller unit is written as 1 of the larger one.
        if abs(seconds) >= scale * 0.99995:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds:.3g} s"


def amount_text(amount: float) -> str:
    """Write an amount of memory, whatever its unit is, with four significant digits.

    >>> amount_text(8.0), amount_text(1234.0), amount_text(1.5e9), amount_text(12345.0)
    ('8', '1234', '1.5 G', '12.35 k')
    """
    if abs(amount) < 9999.5:
        return f"{amount:.4g}"
    scale, unit = next(entry for entry in _THOUSANDS if abs(amount) >= entry[0] * 0.99995)
    return f"{amount / scale:.4g} {unit}"


def initials(names: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """A character for each name: the first of its letters and digits that is free, or else any free digit, or "?".

    >>> initials(["F", "forward", "f"], taken=".")
    {'F': 'F', 'forward': 'O', 'f': '0'}
    """
    found: dict[str, str] = {}
    for name in names:
        if name not in found:
            used = {*taken, *found.values()}
            found[name] = next((c for c in f"{name.upper()}0123456789" if c.isalnum() and c not in used), "?")
    return found


def shorten(text: str, width: int) -> str:
    """Cut a text to a width; the end stays, because paths differ there.

    >>> shorten("block3/moe/dispatch", 12)
    '..e/dispatch'
    """
    return text if len(text) <= width else f"..{text[len(text) - width + 2 :]}"


def clip(text: str, width: int) -> str:
    """Cut a sentence to a width; the beginning stays, because it says what the sentence is about.

    >>> clip("2.1 ms exposed  F/block3/moe/dispatch: queued behind", 14)
    '2.1 ms expos..'
    """
    return text if len(text) <= width else f"{text[: width - 2]}.."


def one_line(text: str) -> str:
    r"""The text with line breaks and tabs as spaces.

    >>> one_line("block0\n\tmoe")
    'block0 moe'
    """
    return re.sub(r"[^\S ]+", " ", text)


def place_text(lane: str, region: str) -> str:
    """Lane and region as one path; "" when there is neither.

    >>> place_text("F", "block3/moe/dispatch"), place_text("", "block3"), place_text("", "")
    ('F/block3/moe/dispatch', 'block3', '')
    """
    return "/".join(part for part in (lane, region) if part)
