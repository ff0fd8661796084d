"""How numbers and names are written for people."""

import re

__all__ = ["clip", "one_line", "place_text", "seconds_text", "shorten"]

# Largest first: the first unit that the value reaches is used.
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


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
